import cython

@cython.locals(
    size=Py_ssize_t, pos=Py_ssize_t, length=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t,
    payload_at=Py_ssize_t, head=int, envelope=cython.longlong, routes=dict, view="const unsigned char*",
)
cpdef Py_ssize_t relay(object session, bytes data) except -1

@cython.locals(first=int, view="const unsigned char*")
cpdef Py_ssize_t after_id(bytes data, Py_ssize_t pos) except -1

@cython.locals(head=int, skip=Py_ssize_t, prefix=bytes, topic=bytes)
cpdef learn(object session, bytes data, Py_ssize_t at, Py_ssize_t payload_at)

@cython.locals(tail=Py_ssize_t, head=int, major=int, count=Py_ssize_t, found=Py_ssize_t, view="const unsigned char*")
cpdef bint is_payload(bytes data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(count=Py_ssize_t, value=int, view="const unsigned char*")
cpdef Py_ssize_t count_bytes(bytes data, Py_ssize_t at, Py_ssize_t end) except -2

@cython.locals(number=bytes)
cpdef bytes frame_head(long long message_id, Py_ssize_t size)

@cython.locals(size=Py_ssize_t)
cpdef bytes ack_frame(long long number, bytes message_id, bytes rest)

@cython.locals(number=cython.longlong, queue=list)
cpdef send_ack(object session, bytes message_id, bytes rest)

@cython.locals(
    size=Py_ssize_t, number=cython.longlong, waiting=list, queue=list, count=Py_ssize_t, head=bytes, wide=bint,
)
cpdef publish(object session, object route, bytes content, bytes message_id)

@cython.locals(
    size=Py_ssize_t, number=cython.longlong, head=bytes, key=bytes, queue=list, serving=dict, asked=dict, opened=tuple,
)
cpdef request(object session, object route, bytes content, bytes message_id)

@cython.locals(
    key_end=Py_ssize_t, payload_at=Py_ssize_t, size=Py_ssize_t, number=cython.longlong, key=bytes, queue=list,
    entry=tuple, opened=tuple, view="const unsigned char*",
)
cpdef bint respond(object session, bytes data, Py_ssize_t id_at, Py_ssize_t at, Py_ssize_t end) except -1

import cython

@cython.locals(
    size=Py_ssize_t, pos=Py_ssize_t, start=Py_ssize_t, count=Py_ssize_t, call_cut=Py_ssize_t, reply_cut=Py_ssize_t,
    length=Py_ssize_t, id_end=Py_ssize_t, tail_end=Py_ssize_t, end=Py_ssize_t, tag=int,
    serving=dict, calls=dict, replies=dict, pending=dict, tail=bytes, request_id=bytes,
    journal=object, opened=dict, now=object, noted=Py_ssize_t, call=tuple, reply=tuple, ids=list, same=bint,
)
cpdef Py_ssize_t relay(object session, bytes data) except -1

cpdef hand_over(object session, object run, bytes part, Py_ssize_t count)

@cython.locals(end=Py_ssize_t)
cpdef learn_call(object session, bytes data, Py_ssize_t pos, Py_ssize_t size)

@cython.locals(end=Py_ssize_t)
cpdef learn_reply(object session, bytes data, Py_ssize_t pos, Py_ssize_t size)

@cython.locals(length=Py_ssize_t)
cpdef Py_ssize_t frame_end(object session, bytes data, Py_ssize_t pos, Py_ssize_t size) except -2

cpdef Py_ssize_t inner_at(bytes data, Py_ssize_t pos, Py_ssize_t end) except -2

cpdef scan_broadcast(bytes data, Py_ssize_t pos, Py_ssize_t end)

cpdef tuple field_at(bytes data, Py_ssize_t pos, Py_ssize_t end, int tag)

@cython.locals(value=cython.longlong, shift=int, at=Py_ssize_t, byte=cython.longlong)
cpdef tuple varint_at(bytes data, Py_ssize_t pos, Py_ssize_t end)

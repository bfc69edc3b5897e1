from polybus.http.head cimport Head

cdef class Request:
    cdef public object connection
    cdef public Head head
    cdef public str id
    cdef public bytes body, answer

    cpdef send_now(self, bytes raw)
    cpdef send(self, bytes raw)

cdef class Shortcut:
    cpdef bint take(self, bytes ident, bytes body) except -1

cdef class Head:
    cdef public str method, target, path, query, foreign
    cdef public dict headers
    cdef public long long length
    cdef public bint chunked, keep_alive, ordered, upgrade, special
    cdef public object memo
    cdef public Shortcut shortcut
    cdef public bytes before, after
    cdef public Py_ssize_t id_size
    cdef public Head follower

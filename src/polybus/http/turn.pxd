cdef class Turn:
    cdef list _sessions, _answered
    cdef Py_ssize_t _news, _held
    cdef bint _scheduled

    cpdef add(self, session)
    cpdef add_answered(self, session)
    cpdef _schedule(self)
    cpdef _end(self)

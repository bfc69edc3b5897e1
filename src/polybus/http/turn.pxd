cdef class Turn:
    cdef list _sessions, _patient
    cdef Py_ssize_t _news, _held
    cdef bint _scheduled

    cpdef add(self, session, bint patient=*)
    cpdef _schedule(self)
    cpdef _end(self)

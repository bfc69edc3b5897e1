cdef class Turn:
    cdef list _sessions

    cpdef add(self, session)
    cpdef _end(self)

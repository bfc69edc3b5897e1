cdef class Cursor:
    cdef public long long floor, next, known
    cdef public dict open, tries, fresh_tries
    cdef public set done
    cdef public list fresh

    cpdef finish(self, offset)

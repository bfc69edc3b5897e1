import cython

cdef class Gathering:
    cpdef write_out(self)

cdef class Turn:
    cdef list _sessions, _patient
    cdef Py_ssize_t _news, _held
    cdef bint _scheduled
    cdef object _loop

    cpdef add(self, Gathering session, bint patient=*)
    cpdef _schedule(self)
    @cython.locals(session=Gathering, sessions=list)
    cpdef _end(self)

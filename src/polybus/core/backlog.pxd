cdef class Backlog:
    cdef object _again, _group, _ready
    cdef set _back, _passed
    cdef list _delayed, _redo
    cdef long long _epoch, _scans
    cdef double _retry_at
    cdef public object predicate
    cdef public str problem
    cdef public bint reading
    cdef bint _warming

    cpdef delivered_again(self, offset)
    cpdef bint open(self, double now) except -1
    cpdef source(self)

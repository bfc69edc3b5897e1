cdef class Member:
    cdef public object group, endpoint, on_closed, deliver
    cdef public str id
    cdef public long long wanted, recalled, in_flight
    cdef public bint queued, closed
    cdef public dict unconfirmed

import cython

from polybus.http.request cimport Request
from polybus.http.session cimport is_plain

cdef class Deliveries:
    cdef object _headers
    cdef dict _known
    cdef str _tag, _topic
    cdef bytes _lines, _sized
    cdef long long _size

    @cython.locals(tag=str, topic=str, body=bytes, origin=bytes, parts=list, attempt=cython.longlong)
    cpdef bytes encode(self, delivery, Request request)
    cdef _turn_to(self, headers, str tag, str topic)

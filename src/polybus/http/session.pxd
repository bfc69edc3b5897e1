import cython

from polybus.http.head cimport Head, Shortcut
from polybus.http.request cimport Request
from polybus.http.turn cimport Gathering, Turn

cdef class HttpSession(Gathering):
    cdef public object site, identity, outbox, peer
    cdef public long long received
    cdef public Turn turn
    cdef public bint gathering
    cdef bint _alive, _ended
    cdef list _parts, _out, _linked
    cdef long long _have, _need, _skip
    cdef Head _head, _last, _expected
    cdef str _id
    cdef object _chunks, _order, _party, _socket
    cdef public dict _heads, _begun
    cdef double _last_seen
    cdef object _since

    cpdef send(self, bytes raw)
    cpdef send_pieces(self, list pieces, bint patient=*)
    cpdef send_now(self, bytes raw)
    cpdef data_received(self, bytes data)
    @cython.locals(pos=Py_ssize_t, size=Py_ssize_t, after=Py_ssize_t)
    cpdef _read(self, bytes data)
    @cython.locals(head=Head, found=Head, start=Py_ssize_t, stop=Py_ssize_t, body_at=Py_ssize_t, end=Py_ssize_t, ident=bytes, body=bytes, view="const unsigned char*")
    cpdef Py_ssize_t _repeat(self, bytes data, Py_ssize_t pos) except -2
    @cython.locals(last=Head)
    cpdef _came(self, Head head)
    @cython.locals(end=Py_ssize_t, cut=Py_ssize_t, after_id=Py_ssize_t, body=Py_ssize_t, stop=Py_ssize_t, head=Head, known=Head)
    cpdef Py_ssize_t _next(self, bytes data, Py_ssize_t pos) except -2
    @cython.locals(head=Head)
    cpdef _unlink(self)
    cpdef Py_ssize_t _begin(self, Head head, str ident, bytes data, Py_ssize_t pos) except -2
    cpdef Py_ssize_t _continue(self, bytes data, Py_ssize_t pos) except -2
    @cython.locals(head=Head)
    cpdef take(self, Request request)
    @cython.locals(first=Request)
    cpdef answer(self, Request request, bytes raw)

@cython.locals(view="const unsigned char*", at=Py_ssize_t)
cpdef bint is_plain(bytes data, Py_ssize_t start, Py_ssize_t stop) except -1

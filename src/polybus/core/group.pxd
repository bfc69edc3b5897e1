import cython

from polybus.core.backlog cimport Backlog
from polybus.core.cursor cimport Cursor
from polybus.core.member cimport Member

cdef class Group:
    cdef public object hub, options, ledger, orphan_since
    cdef public str topic, name
    cdef public Cursor cursor
    cdef public dict members, in_flight, buried
    cdef public Backlog backlog
    cdef public bint dirty, closed
    cdef public long long first, delivered, redelivered, acked, nacked, timed_out, skipped, expired, dead
    cdef object _waiting
    cdef bint _compiled

    @cython.locals(again=cython.longlong, oldest=list)
    cpdef credit(self, Member member, long long records)
    @cython.locals(window=cython.longlong, may=bint)
    cpdef enqueue(self, Member member)
    @cython.locals(in_flight=dict, unconfirmed=dict, cursor=Cursor, count=cython.longlong, flight=tuple)
    cpdef ack(self, Member member, offsets, done)
    @cython.locals(
        window=cython.longlong, most=cython.longlong, cursor=Cursor, in_flight=dict, backlog=Backlog, member=Member,
        attempt=cython.longlong, needs_ack=bint,
    )
    cpdef pump(self)

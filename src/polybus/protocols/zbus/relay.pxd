import cython

from polybus.core.group cimport Group
from polybus.core.member cimport Member
from polybus.http.head cimport Head, Shortcut
from polybus.http.request cimport Request
from polybus.http.session cimport HttpSession
from polybus.protocols.zbus.deliveries cimport Deliveries

cdef class Era:
    cdef public long long number
    cdef public object calls, policy

    cpdef bint stands(self, long long number, object rules) except -1

cdef class RpcCall:
    cdef public Exchange exchange
    cdef public bytes head, id, body
    cdef public Line caller
    cdef public str sender
    cdef public bint queued
    cdef public object origin, watched

cdef class Line:
    cdef public object party
    cdef public HttpSession connection
    cdef public str sender
    cdef public bint closed, held, plain
    cdef public RpcCall latest, before
    cdef public dict serving, ordered
    cdef Deliveries deliveries
    cdef public long long taken, sent

    @cython.locals(request=Request)
    cpdef deliver(self, bytes ident, list pieces)
    @cython.locals(before=RpcCall)
    cpdef serve(self, RpcCall call)
    @cython.locals(call=RpcCall)
    cpdef served(self, str recver, bytes ident)
    @cython.locals(call=RpcCall)
    cpdef answered(self, str recver, bytes ident, object status, bytes body)

cdef class Slot:
    cdef public object party
    cdef public list waiting
    cdef public long long places
    cdef public Member member
    cdef public Line line
    cdef public Exchange exchange
    cdef public bint closed, plain

    @cython.locals(group=Group, waiting=list, call=RpcCall)
    cpdef add(self, Request request, bint several)
    @cython.locals(request=Request, line=Line)
    cpdef deliver(self, delivery)
    @cython.locals(line=Line, exchange=Exchange, pieces=list)
    cpdef hand_over(self, RpcCall call, bytes ident, Request request, bint busy)

cdef class Exchange:
    cdef public object topic, waiting
    cdef object _calls
    cdef long long _max_calls, _max_size
    cdef public dict consumers
    cdef public long long depth, size, count

    @cython.locals(slot=Slot, size=cython.longlong, request=Request)
    cpdef bint call(self, RpcCall call) except -1
    @cython.locals(call=RpcCall)
    cpdef RpcCall oldest(self, Slot slot)
    cpdef wait(self, Slot slot)
    cpdef drop(self, RpcCall call)
    cpdef _forget(self, RpcCall call)

cdef class Calling(Shortcut):
    cdef Line _line
    cdef Exchange _exchange
    cdef bytes _head
    cdef Era _era
    cdef long long _number
    cdef object _rules

    @cython.locals(line=Line, era=Era, call=RpcCall)
    cpdef bint take(self, bytes ident, bytes body) except -1

cdef class Answering(Shortcut):
    cdef Line _line, _target
    cdef bytes _head
    cdef str _recver
    cdef object _status, _rules
    cdef Era _era
    cdef long long _number

    @cython.locals(line=Line)
    cpdef bint take(self, bytes ident, bytes body) except -1

cdef class Consuming(Shortcut):
    cdef Head _head
    cdef Slot _slot
    cdef Era _era
    cdef long long _number, _most
    cdef object _rules

    @cython.locals(slot=Slot, line=Line, most=cython.longlong, call=RpcCall)
    cpdef bint take(self, bytes ident, bytes body) except -1

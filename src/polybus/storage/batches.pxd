import cython

from polybus.storage.topic_log cimport TopicLog

cdef class Batch:
    cdef public long long sequence, epoch, size
    cdef public object crc
    cdef public bint sync
    cdef public list parts, changes, loose, dones, offsets, then
    cdef public dict ends

cdef class Batches:
    cdef public object _state, _clock, _limits, _submit, _loop, _loose_timer
    cdef public long long sequence, synced, taken_bytes, _epoch, _now, _queued_bytes, _max_frame
    cdef public Batch _open, _open_os, _aside
    cdef public bint _scheduled, _paused
    cdef public list _held
    cdef public dict _outstanding, _kept

    cpdef give_offsets(self)
    cpdef long long now_ms(self) except -1
    cpdef _taken(self, Batch batch)
    cpdef _schedule(self)
    @cython.locals(batch=Batch)
    cpdef flush(self)
    cpdef _close(self, Batch batch, bint aside=*)
    @cython.locals(log=TopicLog)
    cpdef _hand_over(self, Batch batch)
    @cython.locals(batch=Batch)
    cpdef reported(self, list batches, object error)
    @cython.locals(log=TopicLog)
    cpdef _apply(self, Batch batch)
    @cython.locals(dones=list, offsets=list, number=Py_ssize_t)
    cpdef _tell(self, Batch batch, object error)

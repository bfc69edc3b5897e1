import cython

from polybus.storage.batches cimport Batch, Batches
from polybus.storage.topic_log cimport TopicLog

cdef class Intake(Batches):
    cdef public dict _topics
    cdef public list _plain_logs
    cdef public long long _plain_bytes, _max_plain, _max_queue
    cdef public object refusal

    @cython.locals(log=TopicLog, payload=bytes, size=cython.longlong)
    cpdef bint append(self, topic, records, done) except -1
    @cython.locals(log=TopicLog, batch=Batch)
    cpdef bint append_joined(self, topic, ends, parts, done) except -1
    @cython.locals(size=cython.longlong, batch=Batch)
    cpdef bint _append_payloads(self, TopicLog log, tuple payloads, done) except -1
    @cython.locals(batch=Batch)
    cpdef Batch _batch_for_many(self, TopicLog log, long long size)
    cpdef bint _many_taken(self, Batch batch, TopicLog log, done) except -1
    cpdef Batch _batch_for(self, TopicLog log)
    @cython.locals(
        log=TopicLog, batch=Batch, logs=list, payload=bytes, payloads=tuple,
        latest=cython.longlong, offset=cython.longlong,
        size=cython.longlong, total=cython.longlong, count=Py_ssize_t,
    )
    cpdef give_offsets(self)
    @cython.locals(count=Py_ssize_t, size=cython.longlong)
    cpdef _store_payloads(self, Batch batch, TopicLog log, tuple payloads, time_ms)
    cpdef _store_joined(self, Batch batch, TopicLog log, ends, parts)
    cpdef _store_view(self, Batch batch, TopicLog log, view)

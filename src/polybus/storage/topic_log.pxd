import cython

cdef class TopicLog:
    cdef public object id, name, folder, created_ms, updated_ms, options, groups, sinks, dedup
    cdef public object changed_groups, changed_sinks, plain_done
    cdef public bytes plain_first
    cdef public long long first, moved, end, next, last_ms, oldest, hold, tail_bytes
    cdef public list segments, bases, times_ms, items, plain, plain_dones
    cdef public bint os, removed, changed

    cpdef add(self, object base, object time_ms, object item, long long size)
    cpdef drop_first(self, Py_ssize_t count, long long size)

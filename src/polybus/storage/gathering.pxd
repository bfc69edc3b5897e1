import cython

@cython.locals(count=Py_ssize_t, size=cython.longlong, more=Py_ssize_t, more_bytes=cython.longlong, at=Py_ssize_t)
cpdef Py_ssize_t group_end(list items, Py_ssize_t start, long long limit) except -1

@cython.locals(
    payloads=list, view="long long[::1]", time_us=cython.longlong, at=Py_ssize_t, number=Py_ssize_t, _=Py_ssize_t,
)
cpdef encode_group(base, list times_ms, list items)

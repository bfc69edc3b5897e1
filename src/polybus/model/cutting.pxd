import cython

@cython.locals(
    view="const unsigned char*", size=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, number=Py_ssize_t, found=list,
)
cpdef list cut(bytes raw, Py_ssize_t shift, const int[::1] ends)

@cython.locals(number=Py_ssize_t)
cpdef list milliseconds(const long long[::1] times)

@cython.locals(
    name=bytes, value=bytes, name_size=bytes, value_size=bytes, name_at=Py_ssize_t, value_at=Py_ssize_t, at=Py_ssize_t,
    begin=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, number=Py_ssize_t, found=list,
)
cpdef list cut_headers(const int[::1] cuts, bytes names, bytes name_sizes, bytes values, bytes value_sizes)

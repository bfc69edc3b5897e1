import cython

@cython.locals(view="int[::1]", total=cython.longlong, number=Py_ssize_t)
cpdef ends_of(values)

import cython

cdef class Journal:
    cdef public object written, dropped
    cdef object _clock, _write, _encode, _waiting, _offset_us, _nonce, _next
    cdef list _rows, _ids
    cdef Py_ssize_t _count

    @cython.locals(ids=list, opened=tuple)
    cpdef list alike(self, object now, str wire, tuple opened, str caller, object size, object status=*)

    cpdef _add(self, tuple row)

    cpdef settle(self, Py_ssize_t count)

@cython.locals(
    parts=list, sizes=list, lengths=list, text=bytes, head=bytes, tail=bytes, cut=Py_ssize_t, rest=Py_ssize_t, alike=list, id=bytes,
)
cpdef tuple _with_ids(list texts, list ids)

cpdef bytes _escaped(bytes id)

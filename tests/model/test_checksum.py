"""The checksum is zlib's, whoever computes it."""

from __future__ import annotations

import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st

from polybus.model.checksum import crc32


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_it_has_the_numbers_of_zlib_over_several_pieces_too(first: bytes, second: bytes):
    assert crc32(second, crc32(first)) == zlib.crc32(first + second)


def test_it_takes_views_and_large_pieces():
    data = bytes(range(256)) * 4000
    assert crc32(memoryview(data)[5:]) == zlib.crc32(data[5:])


def test_zlib_serves_where_the_faster_code_is_not_installed():
    program = (
        "import sys; sys.modules['isal'] = None\n"
        "from polybus.model.checksum import crc32; print(crc32.__module__, crc32(b'polybus'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["zlib", str(zlib.crc32(b"polybus"))], done.stderr

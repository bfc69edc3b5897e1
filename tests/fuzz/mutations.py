"""Frames that were good once: captured ones, damaged in the ways that networks, bugs and attackers damage them."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator, Sequence

import pytest

FRAMES = int(os.environ.get("POLYBUS_FUZZ_FRAMES", "200000"))
"""How many mutated frames each target gets; a release takes millions."""

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)


def mutate(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One frame of the corpus, damaged one to four times."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice(INTERESTING)
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                del data[at : at + rng.randint(1, 8)]
            case 4:
                other = rng.choice(corpus)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case 5:
                del data[at:]
            case 6 if len(data) >= 4:
                data[:4] = rng.choice((len(data) - 4, len(data), 0, 1, 2**31, 2**32 - 1)).to_bytes(
                    4
                )
            case _:
                data += rng.randbytes(rng.randint(0, 16))
    return bytes(data[: 1 << 16])


def mend(rng: random.Random, frame: bytes, at: int = 0) -> bytes:
    """A frame whose four bytes at `at` mostly tell its length all the same, or the next ones would be swallowed
    unseen."""
    rest = at + 4
    if len(frame) > rest and rng.randrange(8):
        return frame[:at] + (len(frame) - rest).to_bytes(4, "big") + frame[rest:]
    return frame


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as a mistake of ours."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


def halves(rng: random.Random, data: bytes) -> Iterator[bytes]:
    """The same bytes in two pieces, cut anywhere."""
    at = rng.randrange(len(data) + 1)
    yield data[:at]
    yield data[at:]

"""How many twins have passed a call on, so that aliases which point at each other do not bounce it until its deadline.

Invariant: the count is part of the request's id, the one text that every daemon keeps and covers by its signature; an
id that nobody counted in is a first hop.
"""

from __future__ import annotations

import re
from typing import Final

# A chain of names for one service over this many twins is a mistake
MAX_HOPS: Final = 8
_COUNT: Final = re.compile(r"~([0-9]{1,2})$")


def hops_of(uid: str) -> int:
    """How many twins have passed a request on before."""
    found = _COUNT.search(uid)
    return int(found[1]) if found is not None else 0


def with_hops(uid: str, hops: int) -> str:
    """An id for a request that so many twins have passed on."""
    return f"{uid}~{hops}" if hops else uid

"""What the tests of the node share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polybus.server import identity
from tests.server.doors import Kind


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kind], None]:
    """Makes a TCP peer of this machine one of another, which is all that tells a stranger."""

    def judge(kind: Kind) -> None:
        if kind == "stranger":
            monkeypatch.setattr(identity, "is_loopback", lambda peer: False)

    return judge

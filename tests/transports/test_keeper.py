"""Staying connected."""

from __future__ import annotations

import pytest

from polybus.errors import PeerUnavailable
from polybus.transports.keeper import Keeper


async def nothing() -> None:
    pass


async def test_a_connection_that_ends_while_it_is_made_does_not_count_as_up():
    keeper: Keeper

    async def connect() -> None:
        keeper.lost()

    keeper = Keeper(connect, nothing)
    await keeper.start()
    with pytest.raises(PeerUnavailable):
        await keeper.ready(0)
    await keeper.stop()


async def test_a_connection_that_stands_is_ready_at_once():
    keeper = Keeper(nothing, nothing)
    await keeper.start()
    await keeper.ready(0)
    await keeper.stop()

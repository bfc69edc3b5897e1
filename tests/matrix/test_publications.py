"""Publications between the Golem Service Bus, the T2 Bus and the SDK: who gets what, how often, and their own.

The invariant: every test ends with a marker that comes after whatever could have come, so that nothing is waited for.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final, Self

import pytest

import polybus
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.t2.client import Client, Connector, Subscription
from tests.matrix.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

END: Final = b"the end"
PATIENCE: Final = 10.0


class Party:
    """One client that publishes and subscribes, by shared names."""

    wire = ""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.got: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def subscribe(self, pattern: str) -> None:
        raise NotImplementedError

    async def publish(self, name: str, payload: bytes) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def until_the_end(self, ends: int = 1) -> list[tuple[str, bytes]]:
        """All that came before the marker, which every subscription of `ends` gets."""
        found: list[tuple[str, bytes]] = []
        async with asyncio.timeout(PATIENCE):
            while True:
                name, payload = await self.got.get()
                if payload != END:
                    found.append((name, payload))
                    continue
                ends -= 1
                if not ends:
                    return found


class GsbParty(Party):
    wire = "GSB"

    async def start(self) -> None:
        self._client = GsbClient(self.stage.address)
        await self._client.open()

    async def stop(self) -> None:
        await self._client.close()

    async def subscribe(self, pattern: str) -> None:
        await self._client.subscribe(
            f"/{pattern}", lambda caller, topic, data: self.got.put_nowait((topic[1:], data))
        )

    async def publish(self, name: str, payload: bytes) -> None:
        await self._client.broadcast(f"/{name}", payload)


class T2Party(Party):
    wire = "T2"

    async def start(self) -> None:
        self._client: Client = await Connector.tcp(self.stage.address).connect()
        self._tasks: list[asyncio.Task[None]] = []

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def subscribe(self, pattern: str) -> None:
        subscription = await self._client.subscribe_bytes(pattern)
        self._tasks.append(asyncio.create_task(self._collect(subscription)))

    async def _collect(self, subscription: Subscription[tuple[str, bytes]]) -> None:
        async for name, payload in subscription:
            self.got.put_nowait((name, payload))

    async def publish(self, name: str, payload: bytes) -> None:
        await self._client.publish_bytes(name, payload)


class SdkParty(Party):
    wire = "SDK"

    async def start(self) -> None:
        self._bus = await polybus.connect(f"polybus://{self.stage.address}")
        self._tasks: list[asyncio.Task[None]] = []

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._bus.close()

    async def subscribe(self, pattern: str) -> None:
        subscribed = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._collect(pattern, subscribed)))
        await subscribed.wait()

    async def _collect(self, pattern: str, subscribed: asyncio.Event) -> None:
        async with self._bus.subscribe(pattern) as subscription:
            subscribed.set()
            async for message in subscription:
                self.got.put_nowait((message.name, message.payload))

    async def publish(self, name: str, payload: bytes) -> None:
        await self._bus.publish(name, payload)


PARTIES: Final = (GsbParty, T2Party, SdkParty)
PAIRS: Final = list(itertools.product(PARTIES, PARTIES))
ACROSS: Final = [(one, other) for one, other in PAIRS if one is not other]


def named(kind: type[Party]) -> str:
    return kind.wire


@pytest.mark.parametrize(("publishing", "subscribing"), PAIRS, ids=named)
async def test_a_publication_reaches_every_system_in_order(
    publishing: type[Party], subscribing: type[Party], stage: Stage
):
    base = stage.new_base()
    async with publishing(stage) as publisher, subscribing(stage) as subscriber:
        await subscriber.subscribe(f"{base}/price")
        for number in range(20):
            await publisher.publish(f"{base}/price", f"{number}\xff".encode("latin-1"))
            await publisher.publish(f"{base}/other", b"not asked for")
        await publisher.publish(f"{base}/price", END)
        wanted = [(f"{base}/price", f"{n}\xff".encode("latin-1")) for n in range(20)]
        assert await subscriber.until_the_end() == wanted


@pytest.mark.parametrize("subscribing", [T2Party, SdkParty], ids=named)
@pytest.mark.parametrize("publishing", PARTIES, ids=named)
async def test_a_pattern_matches_what_any_system_publishes(
    publishing: type[Party], subscribing: type[Party], stage: Stage
):
    base = stage.new_base()
    async with publishing(stage) as publisher, subscribing(stage) as subscriber:
        await subscriber.subscribe(f"{base}/*/eur")
        await subscriber.subscribe(f"{base}/all/**")
        for name in ("btc/eur", "btc/usd", "a/b/eur", "all/x", "all/x/y"):
            await publisher.publish(f"{base}/{name}", name.encode())
        await publisher.publish(f"{base}/all/end", END)
        found = [payload.decode() for _, payload in await subscriber.until_the_end()]
        assert found == ["btc/eur", "all/x", "all/x/y"]


@pytest.mark.parametrize("subscribing", PARTIES, ids=named)
async def test_a_publication_to_a_pattern_reaches_all_whom_it_covers(
    subscribing: type[Party], stage: Stage
):
    base = stage.new_base()
    async with T2Party(stage) as publisher, subscribing(stage) as subscriber:
        await subscriber.subscribe(f"{base}/btc")
        await subscriber.subscribe(f"{base}/deep/er")
        await publisher.publish(f"{base}/*", b"halt")
        await publisher.publish(f"{base}/btc", END)
        found = await subscriber.until_the_end()
        # GSB has no wildcards, so that its subscriber sees the topic that it asked for.
        name = f"{base}/btc" if subscribing is GsbParty else f"{base}/*"
        assert found == [(name, b"halt")]


@pytest.mark.parametrize("publishing", PARTIES, ids=named)
async def test_one_connection_gets_a_publication_once_however_often_it_matches(
    publishing: type[Party], stage: Stage
):
    """Sent once, it is sorted to both subscriptions by the client; sent twice, each would get two."""
    base = stage.new_base()
    async with (
        publishing(stage) as publisher,
        T2Party(stage) as t2,
        SdkParty(stage) as sdk,
        GsbParty(stage) as gsb,
    ):
        for pattern in (f"{base}/x", f"{base}/*"):
            await t2.subscribe(pattern)
            await sdk.subscribe(pattern)
        await gsb.subscribe(f"{base}/x")
        await publisher.publish(f"{base}/x", b"1")
        await publisher.publish(f"{base}/x", END)
        assert await gsb.until_the_end() == [(f"{base}/x", b"1")]
        assert await t2.until_the_end(2) == [(f"{base}/x", b"1")] * 2
        assert await sdk.until_the_end(2) == [(f"{base}/x", b"1")] * 2


@pytest.mark.parametrize("kind", PARTIES, ids=named)
async def test_who_subscribes_to_what_it_publishes_gets_its_own(kind: type[Party], stage: Stage):
    """As on the original buses: both send a publication to its publisher as well."""
    base = stage.new_base()
    async with kind(stage) as party:
        await party.subscribe(f"{base}/own")
        await party.publish(f"{base}/own", b"mine")
        await party.publish(f"{base}/own", END)
        assert await party.until_the_end() == [(f"{base}/own", b"mine")]


@pytest.mark.parametrize(("publishing", "subscribing"), ACROSS, ids=named)
async def test_who_has_left_gets_nothing_and_harms_nobody(
    publishing: type[Party], subscribing: type[Party], stage: Stage
):
    base = stage.new_base()
    async with publishing(stage) as publisher, subscribing(stage) as staying:
        await staying.subscribe(f"{base}/news")
        async with subscribing(stage) as leaving:
            await leaving.subscribe(f"{base}/news")
            await publisher.publish(f"{base}/news", b"both")
            await publisher.publish(f"{base}/news", END)
            assert await leaving.until_the_end() == [(f"{base}/news", b"both")]
        await publisher.publish(f"{base}/news", b"one")
        await publisher.publish(f"{base}/news", END)
        assert await staying.until_the_end() == [(f"{base}/news", b"both")]
        assert await staying.until_the_end() == [(f"{base}/news", b"one")]

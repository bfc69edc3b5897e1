"""The published clients of each system on one side of a call, ours of every other system on the other."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

import polybus
from polybus.server import Config, Node
from polybus.server.config import Capture
from tests.interop.gsb.build import NoCargo
from tests.interop.gsb.build import build_peer as build_gsb
from tests.interop.rmb.npm import NoNode, install
from tests.interop.t2.conftest import build_t2_peer, build_t2_program
from tests.interop.zbus.build import NoJava
from tests.interop.zbus.build import build_peer as build_zbus
from tests.matrix.callers import CALLERS, Caller
from tests.matrix.cells import OWN, WORDS
from tests.matrix.play import HALF_MIB
from tests.matrix.services import FAILURE, SERVICES, Service
from tests.matrix.stage import HERE, Stage
from tests.matrix.test_publications import GsbParty, SdkParty
from tests.protocols.rmb.twins import until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),  # the first test of a kind pays for the build
]

PATIENCE: Final = 60.0
SCRIPT: Final = Path(__file__).parent.parent / "interop" / "rmb" / "real_client.js"
# A text of that length in CBOR is not UTF-8, so that it crosses every wire as the bytes it is.
CBOR: Final = b"\x78\x82" + b"x" * 130


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with Stage(commands=("demo.**",)) as made:
        yield made


def others(system: str) -> list[type[Caller]]:
    """Callers of all other systems."""
    return [caller for caller in CALLERS if OWN[caller.name] != system]


def foreign(system: str) -> list[type[Service]]:
    """Services of all other systems."""
    return [service for service in SERVICES if service.name != system]


def named(kind: type[Caller] | type[Service]) -> str:
    return kind.name.replace("/", "")


def environment(stage: Stage) -> dict[str, str]:
    return {**os.environ, "GSB_URL": f"tcp://{stage.address}"}


async def output(command: list[str], env: dict[str, str]) -> str:
    """What a program says until its end."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=env)
    try:
        async with asyncio.timeout(PATIENCE):
            said, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, said.decode() + complaint.decode()[-2000:]
    return said.decode()


@asynccontextmanager
async def going_on(command: list[str], env: dict[str, str]) -> AsyncIterator[Process]:
    """A program that serves, from the line on that says so."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=env)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert b"ready" in await process.stdout.readline()
        yield process
    finally:
        process.kill()
        await process.communicate()


async def cut_short(command: list[str], env: dict[str, str], service: Service) -> list[str]:
    """What a program says that calls a service again and again, until the service leaves in the middle of a call."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=env)
    try:
        async with asyncio.timeout(PATIENCE):
            await service.held.wait()
            await service.vanish()
            said, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 0, said.decode() + complaint.decode()[-2000:]
    return [line for line in said.decode().splitlines() if line != "calling"]


async def check(caller: Caller, base: str, payload: bytes = b'"hello"') -> None:
    """A service that answers, fails, and is not there, as one of our callers sees it."""
    words = WORDS[caller.name]
    answered = await caller.call(base, "echo", payload)
    assert (answered.word, answered.body) == (words["ok"], payload)
    failed = await caller.call(base, "fail", payload)
    assert failed.word == words["error"]
    assert FAILURE in failed.text


# -- the Golem Service Bus --


@pytest.fixture(scope="module")
def gsb_peer() -> str:
    try:
        return str(build_gsb())
    except NoCargo as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("kind", foreign("GSB"), ids=named)
async def test_the_real_gsb_client_calls(kind: type[Service], gsb_peer: str, stage: Stage):
    service = await stage.service(kind)
    said = await output([gsb_peer, "ask", f"/{service.base}"], environment(stage))
    answered, failed, absent, end = said.splitlines()
    assert (answered, end) == ('OK "hello"', "ok ask")
    assert failed.startswith("500 ")
    assert FAILURE in failed
    assert absent.startswith("400 ")


# A handler that pops a queue is never seen to leave, and this system has no deadline.
GSB_CUT: Final = [kind for kind in foreign("GSB") if kind.name != "RMB"]


@pytest.mark.parametrize("kind", GSB_CUT, ids=named)
async def test_the_real_gsb_client_calls_with_payloads_of_all_kinds_and_is_cut_short(
    kind: type[Service], gsb_peer: str, stage: Stage
):
    service = kind(stage, stage.new_base())
    await service.start()
    command = [gsb_peer, "more", f"/{service.base}"]
    half, binary, beyond, gone, end = await cut_short(command, environment(stage), service)
    assert (half, binary, end) == ("OK true", "OK true", "ok more")
    assert beyond.startswith("400 ") if kind.name == "T2" else beyond == "OK true"
    assert gone.startswith("500 ")
    assert "disconnected" in gone


@pytest.mark.parametrize("kind", others("GSB"), ids=named)
async def test_the_real_gsb_client_serves(kind: type[Caller], gsb_peer: str, stage: Stage):
    base = stage.new_base()
    async with (
        going_on([gsb_peer, "answer", f"/{base}"], environment(stage)),
        kind(stage) as caller,
    ):
        await check(caller, base)


# -- the T2 Bus --


@pytest.fixture(scope="module")
def t2_peer() -> str:
    return str(build_t2_peer())


@pytest.mark.parametrize("kind", foreign("T2"), ids=named)
async def test_the_real_t2_client_asks(kind: type[Service], t2_peer: str, stage: Stage):
    service = await stage.service(kind)
    command = [t2_peer, f"tcp:{stage.address}", "ask", service.base]
    answered, failed, absent = (await output(command, environment(stage))).splitlines()
    assert (answered, failed) == ("Ok true", "RequestFailedTimeout")
    assert absent == f"Request failed: Service not found: {service.base}_nobody/echo"


@pytest.mark.parametrize("kind", foreign("T2"), ids=named)
async def test_the_real_t2_client_asks_with_payloads_of_all_kinds_and_is_cut_short(
    kind: type[Service], t2_peer: str, stage: Stage
):
    """A typed payload of half a mebibyte is compressed by the client, and noise stays as large as it is."""
    base = stage.new_handlers() if kind.name == "RMB" else stage.new_base()
    service = kind(stage, base)
    await service.start()
    command = [t2_peer, f"tcp:{stage.address}", "more", base]
    answers = await cut_short(command, environment(stage), service)
    assert answers == ["Ok true", "Ok true", "Ok true", "RequestFailedTimeout"]


@pytest.mark.parametrize(
    "kind", [caller for caller in others("T2") if caller.name != "/rpc URL"], ids=named
)
async def test_the_real_t2_client_serves(kind: type[Caller], t2_peer: str, stage: Stage):
    """It has no way to fail, and its payloads are CBOR, which a URL cannot carry."""
    base = stage.new_base()
    command = [t2_peer, f"tcp:{stage.address}", "answer", base]
    async with going_on(command, environment(stage)), kind(stage) as caller:
        answered = await caller.call(base, "echo", CBOR)
        assert (answered.word, answered.body) == (WORDS[kind.name]["ok"], CBOR)


@pytest.fixture(scope="module")
def t2_program() -> str:
    return str(build_t2_program())


async def test_the_real_t2_program_sees_what_other_systems_publish(t2_program: str, stage: Stage):
    base = stage.new_base()
    router = stage.nodes[HERE].router
    before = router.subscribed("t2")
    command = [t2_program, "sub", f"{base}/**", f"tcp:{stage.address}"]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    try:
        await until(lambda: router.subscribed("t2") > before)
        async with GsbParty(stage) as gsb, SdkParty(stage) as sdk:
            await gsb.publish(f"{base}/from/gsb", b"\x01")
            await sdk.publish(f"{base}/from/sdk", b"\x02")
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            lines = [(await process.stdout.readline()).decode().strip() for _ in range(2)]
        assert lines == [f"{base}/from/gsb: 0x01", f"{base}/from/sdk: 0x02"]
    finally:
        process.kill()
        await process.communicate()


async def test_other_systems_see_what_the_real_t2_program_publishes(t2_program: str, stage: Stage):
    topic = f"string/{stage.new_base()}"
    async with GsbParty(stage) as gsb, SdkParty(stage) as sdk:
        await gsb.subscribe(topic)
        await sdk.subscribe("string/*")
        command = [t2_program, "pub", topic, "hello", f"tcp:{stage.address}"]
        await output(command, environment(stage))
        for party in (gsb, sdk):
            async with asyncio.timeout(PATIENCE):
                assert await party.got.get() == (topic, b"\x65hello")  # a text in CBOR


# -- Zbus --


@pytest.fixture(scope="module")
def zbus_peer() -> list[str]:
    try:
        return build_zbus()
    except NoJava as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("kind", foreign("Zbus RPC"), ids=named)
async def test_the_real_java_client_finds_and_calls(
    kind: type[Service], zbus_peer: list[str], stage: Stage
):
    service = await stage.service(kind)
    called = await output([*zbus_peer, "call", stage.address, service.base], environment(stage))
    assert "ok call" in called


@pytest.mark.parametrize("kind", foreign("Zbus RPC"), ids=named)
async def test_the_real_java_client_calls_with_a_large_payload_and_is_cut_short(
    kind: type[Service], zbus_peer: list[str], stage: Stage
):
    base = stage.new_handlers() if kind.name == "RMB" else stage.new_base()
    service = kind(stage, base)
    await service.start()
    command = [*zbus_peer, "more", stage.address, base]
    same, *gone, end = await cut_short(command, environment(stage), service)
    assert (same, end) == ("same", "ok more")
    # A handler that pops a queue is never seen to leave: there the client itself gives up.
    assert ("disconnected" in gone[0]) is (kind.name != "RMB"), gone


async def test_the_real_java_client_hears_that_nobody_answers(zbus_peer: list[str], stage: Stage):
    said = await output([*zbus_peer, "absent", stage.address, stage.new_base()], environment(stage))
    assert "absent: " in said


async def test_the_real_java_client_serves(zbus_peer: list[str], stage: Stage):
    base = stage.new_base()
    service = [*zbus_peer, "service", stage.address, base]
    async with going_on(service, environment(stage)):
        for kind in others("Zbus RPC"):
            async with kind(stage) as caller:
                await until_answered(caller, base)
                failed = await caller.call(base, "boom", b'"x"')
                assert failed.word == WORDS[kind.name]["error"]
                assert "boom-x" in failed.text


async def until_answered(caller: Caller, base: str) -> None:
    """The Java service says that it is ready before it consumes."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answered = await caller.call(base, "plus", b"[1,2]")
            if answered.word == WORDS[caller.name]["ok"]:
                assert answered.body == b"3"
                return
            await asyncio.sleep(0.05)


async def test_the_real_java_client_consumes_what_was_captured(
    zbus_peer: list[str], tmp_path: Path
):
    """Publications of three systems, and a call between two others with its answer, from two topics."""
    rules = (
        Capture(pattern="price/**", topic="prices"),
        Capture(pattern="calc/**", topic="calls", kind="call"),
    )
    config = Config(listen=("tcp://127.0.0.1:0",), data=tmp_path / "data", capture=rules)
    async with Node(config) as node:
        place = f"127.0.0.1:{node.addresses[0].port}"
        for number, scheme in enumerate(("gsb", "t2", "polybus")):
            async with polybus.connect(f"{scheme}://{place}") as bus:
                await bus.publish("price/eur", b"1.%d" % number)
        async with (
            polybus.connect(f"gsb://{place}") as golem,
            polybus.connect(f"t2://{place}") as t2,
        ):
            await golem.serve("calc/double", lambda body: body * 2)
            assert await t2.call("calc/double", b"21") == b"2121"
        said = await output([*zbus_peer, "take", place, "prices", "3"], dict(os.environ))
        taken = [line.split(" ", 4)[1:] for line in said.splitlines() if line.startswith("took ")]
        assert taken == [
            ["price/eur", "gsb", "-", "1.0"],
            ["price/eur", "t2", "-", "1.1"],
            ["price/eur", "native", "-", "1.2"],
        ]
        said = await output([*zbus_peer, "take", place, "calls", "2"], dict(os.environ))
        taken = [line.split(" ", 4)[1:] for line in said.splitlines() if line.startswith("took ")]
        ids = {each.pop(2) for each in taken}
        assert taken == [["request", "t2", "21"], ["reply", "t2", "2121"]]
        assert len(ids) == 1
        assert ids != {"-"}


# -- the Reliable Message Bus --


@pytest.fixture(scope="module")
def node_env() -> dict[str, str]:
    try:
        return {**os.environ, "NODE_PATH": str(install())}
    except NoNode as missing:
        pytest.skip(str(missing))


async def npm_call(
    env: dict[str, str], stage: Stage, cmd: str, exp: int, payload: str = '"hello"'
) -> dict[str, Any]:
    port = stage.redis_port(HERE)
    command = ["node", str(SCRIPT), "call", str(port), cmd, str(HERE), str(exp), "0", payload]
    (line,) = [x for x in (await output(command, env)).splitlines() if x.startswith("REPLIES ")]
    (reply,) = json.loads(line.removeprefix("REPLIES "))
    found: dict[str, Any] = reply
    return found


@pytest.mark.parametrize("kind", foreign("RMB"), ids=named)
async def test_the_real_npm_client_calls(
    kind: type[Service], node_env: dict[str, str], stage: Stage
):
    service = await stage.service(kind)
    assert (await npm_call(node_env, stage, f"{service.base}.echo", 30))["dat"] == '"hello"'
    assert FAILURE in (await npm_call(node_env, stage, f"{service.base}.fail", 30))["err"]
    half = await npm_call(node_env, stage, f"{service.base}.echo", 30, "@half-a-mebibyte")
    assert half["dat"] == HALF_MIB.decode()
    # On a busy machine the second may be over before the bus has read the request, which it then says.
    assert "expir" in (await npm_call(node_env, stage, f"{service.base}.hold", 1))["err"]
    absent = await npm_call(node_env, stage, f"{service.base}_nobody.echo", 1)
    assert "expir" in absent["err"]


async def test_the_real_npm_client_serves(node_env: dict[str, str], stage: Stage):
    command = ["node", str(SCRIPT), "serve", str(stage.redis_port(HERE))]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=node_env)
    try:
        for kind in others("RMB"):
            async with kind(stage) as caller:
                answered = await caller.call("demo", "echo", b'"hello"')
                assert answered.word == WORDS[kind.name]["ok"]
                assert json.loads(answered.body)["got"] == '"hello"'
                failed = await caller.call("demo", "fail", b'"hello"')
                assert failed.word == WORDS[kind.name]["error"]
                assert "no luck" in failed.text
    finally:
        process.kill()
        await process.communicate()


# -- a browser --


@pytest.mark.browser
async def test_a_real_browser_calls_by_url(stage: Stage):
    playwright = pytest.importorskip("playwright.async_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = await browser.new_page()
        for kind in SERVICES:
            service = await stage.service(kind)
            root = f"http://{stage.address}/rpc"
            await page.goto(f"{root}/{service.base}/echo/hello")
            assert json.loads(await page.inner_text("body"))["result"] == "hello"
            await page.goto(f"{root}/{service.base}/fail/hello")
            assert FAILURE in json.loads(await page.inner_text("body"))["error"]
            answer = await page.goto(f"{root}/{service.base}_nobody/echo/hello")
            assert answer is not None
            assert answer.status == 404
        await browser.close()

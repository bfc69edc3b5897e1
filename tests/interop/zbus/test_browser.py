"""A real browser: the documented URLs show their answers, and a page of another origin changes nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.producer import Consumer
from polybus.protocols.zbus.rpc_client import RpcProcessor
from tests.interop.zbus.parts import Server
from tests.protocols.zbus import client_scenarios

pytestmark = [pytest.mark.interop, pytest.mark.browser]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        await opened.close()


@pytest.fixture
async def page(browser: Browser) -> Page:
    return await browser.new_page()


async def shown(page: Page, url: str) -> str:
    """What the browser shows of an answer."""
    await page.goto(url)
    return await page.inner_text("body")


async def test_documented_urls_show_their_answers(page: Page, node: Server):
    base = f"http://{node.address}"
    declared = json.loads(await shown(page, f"{base}/declare/MyTopic"))
    assert declared["topicName"] == "MyTopic"
    options = "group_filter=abc&&group_mask=16"
    group = json.loads(await shown(page, f"{base}/declare/MyTopic/group1?{options}"))
    assert (group["groupName"], group["filter"], group["mask"]) == ("group1", "abc", 16)
    assert (await shown(page, f"{base}/produce/MyTopic?body=hello&&tag=abc")).isdigit()
    assert json.loads(await shown(page, f"{base}/query/MyTopic"))["messageDepth"] == 1
    assert json.loads(await shown(page, f"{base}/query/MyTopic/group1"))["messageCount"] == 1
    answer = await page.goto(f"{base}/consume/MyTopic/group1")
    assert answer is not None
    assert (answer.headers["body"], answer.headers["tag"]) == ("hello", "abc")
    assert "MyTopic" in json.loads(await shown(page, f"{base}/query"))["topicTable"]
    assert node.address in json.loads(await shown(page, f"{base}/tracker"))["serverTable"]
    assert json.loads(await shown(page, f"{base}/MyTopic?cmd=query"))["topicName"] == "MyTopic"
    assert (await shown(page, f"{base}/empty/MyTopic")).isdigit()
    assert (await shown(page, f"{base}/remove/MyTopic/group1")).isdigit()
    assert (await shown(page, f"{base}/remove/MyTopic")).isdigit()
    assert await shown(page, f"{base}/query/MyTopic") == "404: Topic(MyTopic) Not Found"
    assert (await shown(page, f"{base}/ping")).isdigit()
    assert "polybus" in await shown(page, f"{base}/")


async def test_an_rpc_url_calls_a_service(page: Page, node: Server):
    processor = RpcProcessor(client_scenarios.Calc())
    async with Broker(node.address) as broker:
        servers = lambda table, topic: list(table.server_table)  # noqa: E731
        async with Consumer(broker, "Calc", processor.handle, mask=2, selector=servers):
            await client_scenarios.eventually(broker, "Calc")
            url = f"http://{node.address}/rpc/Calc/plus/1/2?module=Calc&&appid=me&&token=t"
            assert json.loads(await shown(page, url))["result"] == 3
            failed = json.loads(await shown(page, f"http://{node.address}/rpc/Calc/boom/x"))
            assert "boom-x" in failed["error"]
    assert "502: Service(Calc) Down" in await shown(
        page, f"http://{node.address}/rpc/Calc/plus/1/2"
    )


async def test_what_a_producer_sent_does_not_run_as_a_page_of_the_node(page: Page, node: Server):
    async with await MqClient.connect(node.address) as client:
        await client.declare("Page")
        body = "<script>document.title = 'run'</script><p>text</p>"
        await client.produce("Page", body, headers={"content-type": "text/html"})
    await page.goto(f"http://{node.address}/consume/Page")
    assert await page.inner_text("p") == "text"
    assert await page.title() != "run"


ATTACK = """<!doctype html><title>attack</title><body><script>
const node = %s;
const seen = {};
async function tried(name, work) {
  try { seen[name] = String(await work()); } catch (error) { seen[name] = "refused"; }
}
function socket() {
  return new Promise((resolve, reject) => {
    const opened = new WebSocket("ws://" + node + "/");
    opened.onopen = () => resolve("opened");
    opened.onerror = () => reject(new Error("refused"));
  });
}
function image() {
  return new Promise((resolve) => {
    const made = document.createElement("img");
    made.onload = made.onerror = () => resolve("asked");
    made.src = "http://" + node + "/produce/Mine?body=image";
  });
}
async function attack() {
  await tried("get", () => fetch("http://" + node + "/produce/Mine?body=get", {mode: "no-cors"}));
  await tried("post", () => fetch("http://" + node + "/produce/Mine",
                                  {mode: "no-cors", method: "POST", body: "post"}));
  await tried("command", () => fetch("http://" + node + "/", {headers: {cmd: "remove", topic: "Mine"}}));
  await tried("remove", () => fetch("http://" + node + "/remove/Mine", {mode: "no-cors"}));
  await tried("image", image);
  await tried("socket", socket);
  return seen;
}
</script></body>"""


async def test_a_page_of_another_origin_changes_nothing(page: Page, node: Server):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = (ATTACK % json.dumps(node.address)).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with await MqClient.connect(node.address) as client:
        await client.declare("Mine")
        await page.goto(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/")
        seen = await page.evaluate("attack()")
        assert seen["socket"] == "refused"
        assert seen["command"] == "refused"
        assert (await client.query("Mine"))["messageDepth"] == 0
        # The same page served by the node itself may do it.
        await page.goto(f"http://{node.address}/")
        status = await page.evaluate("fetch('/produce/Mine?body=own').then(r => r.status)")
        assert status == 200
        opened = """new Promise((resolve, reject) => {
          const socket = new WebSocket("ws://" + location.host + "/");
          socket.onopen = () => socket.send("GET / HTTP/1.1\\r\\ncmd: query\\r\\ntopic: Mine\\r\\n\\r\\n");
          socket.onmessage = (event) => resolve(event.data);
          socket.onerror = () => reject(new Error("refused"));
        })"""
        assert '"messageDepth":1' in await page.evaluate(opened)
    other.close()
    await other.wait_closed()


async def test_a_link_on_another_page_changes_nothing(browser: Browser, node: Server):
    async with await MqClient.connect(node.address) as client:
        await client.declare("Linked")
        page = await browser.new_page()
        await page.set_content(f'<a href="http://{node.address}/produce/Linked?body=x">click</a>')
        await page.click("a")
        await page.wait_for_load_state()
        assert "403" in await page.inner_text("body")
        assert (await client.query("Linked"))["messageDepth"] == 0

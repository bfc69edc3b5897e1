"""Clicks through the monitor with live traffic, at phone and desktop size, in light and dark."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from polybus.protocols.gsb.wire import CURRENT, Kind, encode_hello
from tests.browser.conftest import CACHE, busy_node
from tests.browser.traffic import HOSTILE
from tests.cli.processes import ANY_PORT
from tests.cli.processes import node as new_node

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

# Those of the documentation are taken with PICTURES=docs/img: a picture of live numbers is never the same.
PICTURES = Path(os.environ.get("PICTURES") or CACHE / "pictures")
LAYOUT = (Path(__file__).parent / "layout.js").read_text(encoding="utf-8")
SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
VIEWS = {
    "overview": "Overview",
    "topics": "Topics",
    "topics/orders%2Feu": "orders/eu",
    "groups": "Groups",
    "services": "Services",
    "connections": "Connections",
    "federation": "Trackers and twins",
    "dead": "Dead letters",
    "history": "History",
}


# Twenty pictures tell enough.
PICTURED = {
    ("desktop", "light"): {view.split("/")[0] for view in VIEWS} | {"topics-one"},
    ("desktop", "dark"): {"overview"},
    ("phone", "light"): {"overview", "topics-one", "groups", "services", "history"},
}


@contextmanager
def opened(
    browser: Browser, size: str, scheme: str = "light", *, said: list[str] | None = None
) -> Iterator[Page]:
    """A page whose console must stay silent, unless what it says is asked for."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        has_touch=size == "phone",
    )
    page = context.new_page()
    heard: list[str] = [] if said is None else said
    page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    yield page
    context.close()
    assert heard == [] or said is not None


def go(page: Page, node: str, view: str) -> None:
    page.goto(f"{node}/#/{view}")
    page.get_by_role("heading", level=1, name=VIEWS[view], exact=True).wait_for()
    page.wait_for_timeout(1500)  # for numbers to move: this is what a person would see


def picture(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


@pytest.mark.parametrize("look", PICTURED, ids="-".join)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_whole_and_open_to_everybody(browser, node, axe, view, look):
    size, scheme = look
    with opened(browser, size, scheme) as page:
        go(page, node, view)
        assert page.evaluate(LAYOUT) == []
        assert page.locator(".problem:visible, .banner:visible").count() == 0
        panel = page.evaluate("getComputedStyle(document.querySelector('.side')).backgroundColor")
        assert panel == ("rgb(23, 28, 40)" if scheme == "dark" else "rgb(255, 255, 255)")
        name = view.split("/")[0] + ("-one" if "/" in view else "")
        if name in PICTURED[look]:
            picture(page, f"monitor-{name}-{size}{'-dark' if scheme == 'dark' else ''}")
        assert serious_faults(page, axe) == []


def serious_faults(page: Page, axe: str) -> list[tuple[Any, ...]]:
    """What axe finds in the page as it stands, of those that keep somebody out."""
    page.evaluate(axe)
    found: dict[str, Any] = page.evaluate("axe.run()")
    assert found["passes"]
    return [
        (v["id"], v["impact"], v["nodes"][0]["html"], v["nodes"][0].get("failureSummary"))
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]


NOTHING_YET = {
    "overview": "Nobody has connected yet",
    "topics": "No topics yet",
    "groups": "No groups yet",
    "services": "No services yet",
    "federation": "This node is no twin",
    "dead": "No dead letters",
    "history": "No traffic history yet",
}


@pytest.mark.parametrize("size", SIZES)
def test_a_new_node_says_in_every_view_how_to_begin(browser, axe, tmp_path, size):
    with new_node("--listen", ANY_PORT, cwd=tmp_path) as (_, where), opened(browser, size) as page:
        address = where[0].replace("tcp", "http")
        for view, text in NOTHING_YET.items():
            page.goto(f"{address}/#/{view}")
            page.get_by_text(text).wait_for()
            assert page.evaluate(LAYOUT) == []
            assert serious_faults(page, axe) == []
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as client:
            client.sendall(CURRENT.encode(Kind.HELLO, encode_hello("new", "1", bytes(16))))
            page.goto(f"{address}/#/overview")
            page.locator("tr", has_text="gsb").wait_for()
            page.get_by_text("Nobody has connected yet").wait_for(state="hidden")


def test_numbers_move_by_themselves(browser, node):
    with opened(browser, "desktop") as page:
        go(page, node, "overview")
        calls = page.locator("tr", has_text="native").locator("[data-label=Calls]")
        before = calls.inner_text()
        page.wait_for_function(
            "before => [...document.querySelectorAll('tr')].find(r => r.textContent.includes('native'))"
            ".querySelector('[data-label=Calls]').innerText !== before",
            arg=before,
        )
        for wire in ("native", "gsb", "t2"):
            assert page.locator("td.name", has_text=re.compile(f"^{wire}$")).count() == 1


def test_a_hostile_payload_shows_as_text(browser, node):
    with opened(browser, "desktop") as page:
        page.goto(f"{node}/#/topics/prices")
        record = page.locator("details.record", has_text="onerror")
        record.locator("summary").click()
        assert record.locator("pre").inner_text() == HOSTILE
        assert HOSTILE in record.locator("dl").inner_text()
        assert page.locator("main img, main script").count() == 0
        assert page.title() == "prices · polybus"
        record.locator("pre").scroll_into_view_if_needed()
        picture(page, "monitor-record-desktop")


def test_bytes_are_shown_in_hex(browser, node):
    with opened(browser, "desktop") as page:
        page.goto(f"{node}/#/topics/prices")
        record = page.locator("details.record", has_text="binary data")
        record.locator("summary").click()
        assert "000010  10 11 12" in record.locator("pre").inner_text()


def test_records_are_found_by_offset_and_tag(browser, node):
    with opened(browser, "desktop") as page:
        page.goto(f"{node}/#/topics/prices")
        page.get_by_label("Tag filter").fill("hostile")
        page.get_by_role("button", name="Show").click()
        page.get_by_text("22 looked at").wait_for()
        assert page.locator("details.record").count() == 1
        page.get_by_label("Tag filter").fill("")
        page.get_by_label("From offset").fill("3")
        page.get_by_role("button", name="Show").click()
        page.locator("details.record .offset", has_text=re.compile("^3$")).wait_for()
        assert page.locator("details.record .offset").first.inner_text() == "3"
        page.get_by_role("button", name="Newest").click()
        page.get_by_text("newest first").wait_for()


def test_the_live_tail_shows_what_comes_and_filters_it(browser, node):
    with opened(browser, "phone") as page:
        page.goto(f"{node}/#/topics/orders%2Feu")
        page.get_by_role("button", name="Live tail").click()
        page.locator("details.record").nth(3).wait_for()
        page.get_by_label("Tag filter").fill("orders.paid")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_timeout(1500)
        page.get_by_role("button", name="Pause").click()
        assert "orders.paid" in page.locator("details.record").first.inner_text()
        assert page.evaluate(LAYOUT) == []
        picture(page, "monitor-tail-phone")


def test_a_topic_is_added_filled_emptied_and_removed(browser, node):
    with opened(browser, "desktop") as page:
        page.goto(f"{node}/#/topics")
        page.get_by_role("button", name="Add topic").click()
        page.get_by_label("Name").fill("made/here")
        page.locator("dialog").get_by_role("button", name="Add topic").click()
        page.get_by_role("link", name="made/here").click()
        page.get_by_text("No records yet").wait_for()
        page.get_by_role("button", name="Produce").click()
        page.get_by_label("Payload", exact=True).fill('{"hello": "world"}')
        assert page.evaluate(LAYOUT) == []
        picture(page, "monitor-produce-desktop")
        page.locator("dialog").get_by_role("button", name="Produce").click()
        page.get_by_text("Stored at offset 0").wait_for()
        page.locator("details.record").first.wait_for()
        page.get_by_role("button", name="Empty").click()
        confirm = page.locator("dialog").get_by_role("button", name="Empty topic")
        assert confirm.is_disabled()
        page.get_by_label("Type made/here to confirm").fill("made/here")
        confirm.click()
        page.get_by_text("No records yet").wait_for()
        page.get_by_role("button", name="Remove").click()
        page.get_by_label("Type made/here to confirm").fill("made/here")
        page.locator("dialog").get_by_role("button", name="Remove topic").click()
        page.get_by_role("heading", level=1, name="Topics").wait_for()
        page.get_by_role("link", name="made/here").wait_for(state="detached")


def test_a_service_is_called(browser, node):
    with opened(browser, "desktop") as page:
        page.goto(f"{node}/#/services")
        page.get_by_role("button", name="Call calc/twice").click()
        page.get_by_label("Payload", exact=True).fill("ab")
        page.locator("dialog").get_by_role("button", name="Call", exact=True).click()
        page.locator("dialog pre").wait_for()
        assert page.locator("dialog pre").inner_text() == "abab"
        assert page.evaluate(LAYOUT) == []
        picture(page, "monitor-call-desktop")
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")


def test_a_name_below_a_service_that_owns_all_below_it_is_called(browser, node):
    with opened(browser, "desktop") as page:
        page.goto(f"{node}/#/services")
        page.get_by_role("button", name="Call /golem/payment/invoice").click()
        page.get_by_label("Name", exact=True).fill("golem/payment/invoice/7")
        page.get_by_label("Payload", exact=True).fill("ab")
        page.locator("dialog").get_by_role("button", name="Call", exact=True).click()
        page.locator("dialog pre", has_text="ab").wait_for()
        assert page.evaluate(LAYOUT) == []


def test_a_topic_that_is_not_there_is_said_and_can_be_added_meanwhile(browser, node):
    said: list[str] = []
    with opened(browser, "desktop", said=said) as page:
        page.goto(f"{node}/#/topics/not%2Fyet")
        page.get_by_text("There is no such topic").wait_for()
        assert page.get_by_role("button", name="Produce").count() == 0
        assert page.request.post(f"{node}/api/v1/topics", data={"name": "not/yet"}).ok
        page.get_by_text("No records yet").wait_for()
        assert page.request.delete(f"{node}/api/v1/topics/not%2Fyet").ok
        page.get_by_text("There is no such topic").wait_for()
    assert {"404" in line for line in said} == {True}


def test_an_address_that_somebody_mistyped_leads_to_the_overview(browser, node):
    with opened(browser, "desktop") as page:
        for mistake in ("nonsense", "%zz", "topics?x"):
            page.goto(f"{node}/#/{mistake}")
            page.get_by_role("heading", level=1, name="Overview").wait_for()
    said: list[str] = []
    with opened(browser, "desktop", said=said) as page:
        page.goto(f"{node}/#/topics/%zz")
        page.get_by_text("There is no such topic").wait_for()
    assert {"404" in line for line in said} == {True}


def test_a_group_is_reset_only_after_confirmation(browser, node):
    with opened(browser, "desktop") as page:
        page.goto(f"{node}/#/groups")
        row = page.locator("tr", has_text="reports")
        assert row.locator("[data-label=Lag]").inner_text() == "20"
        row.get_by_role("button", name="Reset").click()
        page.get_by_role("button", name="Cancel").click()
        assert row.locator("[data-label=Lag]").inner_text() == "20"
        row.get_by_role("button", name="Reset").click()
        page.get_by_label("Go on from").select_option("end")
        page.get_by_role("button", name="Reset group", exact=True).click()
        page.get_by_text("goes on at offset 20").wait_for()
        page.locator("tr", has_text="reports").locator("[data-label=Lag]", has_text="0").wait_for()


def show_t2_connections(page, node):
    """Ask for them, and wait for the answer: until then all connections stand there, the page's own included."""
    page.goto(f"{node}/#/connections")
    page.get_by_label("Protocol").select_option("t2")
    page.locator(".pager", has_text="matching of").wait_for()
    assert page.locator("tbody tr").count() > 1


def test_a_connection_is_closed(browser, node):
    with opened(browser, "desktop") as page:
        show_t2_connections(page, node)
        peer = page.locator("tbody tr td.name").last.inner_text().split("\n")[0]
        page.get_by_role("button", name=f"Disconnect {peer}").click()
        page.locator("dialog").get_by_role("button", name="Disconnect").click()
        page.get_by_text("was closed").wait_for()
        page.locator("td.name", has_text=peer).wait_for(state="detached")


def test_a_button_stays_under_the_pointer_while_the_numbers_beside_it_change(browser, node):
    with opened(browser, "desktop") as page:
        show_t2_connections(page, node)
        row = page.locator("tbody tr").last
        # Any number: an age of more than a minute changes once in a minute.
        shown = row.inner_text()
        button = row.get_by_role("button").element_handle()
        page.wait_for_function(
            "([row, shown]) => row.innerText !== shown", arg=[row.element_handle(), shown]
        )
        assert button.evaluate("button => button.isConnected")


def test_the_keyboard_reaches_everything(browser, node):
    with opened(browser, "desktop") as page:
        go(page, node, "overview")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for _ in range(2):
            page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent").startswith("Topics")
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name="Topics").wait_for()
        page.get_by_role("button", name="Records").focus()
        page.keyboard.press("Enter")
        page.locator("th[aria-sort=descending]").wait_for()


def test_a_dialog_is_answered_by_keyboard_alone(browser, node):
    with opened(browser, "desktop") as page:
        go(page, node, "services")
        button = page.get_by_role("button", name="Call wallet/stellar/balance")
        button.focus()
        page.keyboard.press("Enter")
        page.locator("dialog[open]").wait_for()
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
        page.keyboard.type("x")
        for _ in range(5):
            page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.type") == "submit"
        page.keyboard.press("Enter")
        page.locator("dialog pre", has_text="12.50").wait_for()
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")


def sign_in(page: Page, token: str) -> None:
    page.locator(".side").get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").fill(token)
    page.locator("dialog").get_by_role("button", name="Sign in").click()


def test_who_may_only_look_finds_nothing_to_change(browser):
    with busy_node("guarded") as node, opened(browser, "desktop") as page:
        page.goto(node)
        page.get_by_text("You may not look at this node").wait_for()
        assert page.evaluate(LAYOUT) == []
        sign_in(page, "eye")
        page.get_by_text("You are token:eye: read only").wait_for()
        for view in ("topics", "topics/orders%2Feu", "groups", "services", "connections"):
            go(page, node, view)
            page.locator("main .card").first.wait_for()
            names = "Add|Produce|Empty|Remove|Reset|Call|Disconnect"
            assert page.get_by_role("button", name=re.compile(f"^({names})")).count() == 0
        go(page, node, "history")
        page.get_by_text("No traffic history yet").wait_for()
        page.get_by_text("No calls in the journal").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_text("You may not look at this node").wait_for()
        sign_in(page, "ops")
        page.get_by_text("You are token:ops").wait_for()
        go(page, node, "topics")
        assert page.get_by_role("button", name="Add topic").count() == 1


def test_a_wrong_or_old_token_can_be_replaced(browser):
    said: list[str] = []
    with busy_node("guarded") as node, opened(browser, "desktop", said=said) as page:
        page.context.add_cookies([{"name": "token", "value": "old", "url": node}])
        page.goto(node)
        page.get_by_text("You may not look at this node").wait_for()
        sign_in(page, "wrong")
        page.locator("dialog .problem", has_text="a token that nobody has").wait_for()
        page.get_by_label("Token").fill("eye")
        page.locator("dialog").get_by_role("button", name="Sign in").click()
        page.get_by_text("You are token:eye: read only").wait_for()
    # The browser notes every answer that is no success; nothing else is wrong.
    assert {"401" in line for line in said} == {True}


def test_the_past_is_drawn_from_the_pipelines_topics(browser, node):
    with opened(browser, "desktop") as page:
        go(page, node, "history")
        assert page.locator(".graph path.edge").count() == 6
        assert page.locator(".graph path.c-warn, .graph path.c-bad").count() == 1
        text = page.get_by_role("region", name="Busiest names").inner_text()
        assert "golem/payment/invoice" in text
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        assert page.evaluate(LAYOUT) == []
        picture(page, "monitor-graph-desktop")


def test_the_phone_has_a_menu(browser, node):
    with opened(browser, "phone") as page:
        go(page, node, "overview")
        menu = page.get_by_role("button", name="Menu")
        assert menu.get_attribute("aria-expanded") == "false"
        menu.click()
        assert page.evaluate(LAYOUT) == []
        page.get_by_role("link", name="Services").first.click()
        page.get_by_role("heading", level=1, name="Services").wait_for()
        assert menu.get_attribute("aria-expanded") == "false"


def test_the_theme_is_chosen_and_remembered(browser, node):
    with opened(browser, "desktop") as page:
        go(page, node, "overview")
        theme = page.get_by_role("button", name="Theme")
        theme.click()
        theme.click()
        assert theme.inner_text() == "Theme: dark"
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"

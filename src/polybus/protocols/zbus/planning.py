"""Makes the plan of a head: what is asked, whether it is allowed, and what the answer will need.

Invariant: what is refused here was answered here, once, and changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polybus.http.response import status_line
from polybus.protocols.zbus import answers
from polybus.protocols.zbus.plan import Kind, Plan
from polybus.protocols.zbus.relay import Answering, Calling
from polybus.protocols.zbus.urls import Command, resolve
from polybus.protocols.zbus.wire import (
    MAX_TAG,
    NOT_ROUTED,
    NOT_STORED,
    OK,
    VERSION,
    encode_reply,
    header_text,
    is_acknowledged,
    new_id,
    reply_headers,
)

if TYPE_CHECKING:
    from polybus.http.request import Request
    from polybus.protocols.zbus.party import ZbusParty
    from polybus.protocols.zbus.room import TopicRoute

# What a page of another origin may ask: it changes nothing, and the browser does not let the page read it.
HARMLESS: Final = frozenset(
    {"query", "server", "tracker", "ping", "heartbeat", "home", "file", "ssl", "track_sub"}
)
_PRODUCING: Final = ("produce", "rpc")


def make_plan(party: ZbusParty, request: Request) -> Plan | None:
    """The plan of a request's head; None when the request was answered, or dropped, already."""
    room, head = party.room, request.head
    command = resolve(
        head, bool(request.body), room.is_rpc, module_first=room.options.rpc_urls == "module"
    )
    if not request.id:
        # The id is a header like any other, so a URL may carry it.
        request.id = command.headers.pop("id", "") or new_id()
    if head.foreign and command.name not in HARMLESS:
        request.send(answers.text(403, request.id, command.topic, f"403: {head.foreign}"))
        return None
    who = room.permits.who(party, command)
    if who is None or not room.permits.allow(who, command):
        _deny(request, command)
        return None
    party.who = who
    match command.name:
        case "produce" | "rpc":
            return _plan_produce(party, request, command)
        case "route":
            return _plan_route(party, request, command)
        case "consume" if "offset" not in command.headers:
            return _plan_consume(party, request, command)
    return _new_plan(party, Kind.OTHER, command)


def _new_plan(party: ZbusParty, kind: Kind, command: Command) -> Plan:
    room = party.room
    return Plan(kind, room.era.number, command, party.who, room.router.policy.epoch)


def _deny(request: Request, command: Command) -> None:
    if command.name == "home":
        headers = {**reply_headers(request.id), "location": "/?cmd=login"}
        request.send(encode_reply(302, headers))
    else:
        request.send(answers.forbidden(request.id, command.topic))


def _plan_produce(party: ZbusParty, request: Request, command: Command) -> Plan | None:
    room = party.room
    headers = command.headers
    acknowledged = is_acknowledged(headers) and command.name != "rpc"
    tag = headers.get("tag", "")
    if len(tag) > MAX_TAG:
        if acknowledged or request.head.ordered:
            what = f"Message.Tag length should <= {MAX_TAG}"
            request.send(answers.bad(request.id, command.topic, what))
        return None
    if not command.topic:
        request.send(answers.bad(request.id, "", "Missing topic"))
        return None
    route = room.route(command.topic)
    if route is None:
        body = request.body if command.body is None else command.body
        if acknowledged:
            may = room.router.policy.may(party.who, "produce", command.topic)
            refusal = answers.no_topic if may else answers.forbidden
            request.send(refusal(request.id, command.topic))
        else:
            room.bridge_or_fail(party, command, request, body)
        return None
    stored = _stored_headers(party, request, command)
    if route.rpc is not None:
        return _plan_call(party, request, command, route, stored)
    plan = _new_plan(party, Kind.PRODUCE, command)
    plan.topic = route.name
    plan.acknowledged = acknowledged
    plan.tag = tag
    plan.headers = stored
    lines = {**reply_headers("", command.topic), "content-length": "13"}
    plan.answer_head = b"HTTP/1.1 200 OK\r\n" + header_text(lines).encode() + b"id: "
    return plan


def _stored_headers(party: ZbusParty, request: Request, command: Command) -> dict[str, str]:
    stored = {k: v for k, v in command.headers.items() if k not in NOT_STORED}
    stored.update(party.stamp)
    if stored.get("connection", "").lower() == "close":
        del stored["connection"]
    if request.head.target != "/":
        stored["origin_url"] = request.head.target
    return stored


def _plan_call(
    party: ZbusParty, request: Request, command: Command, route: TopicRoute, stored: dict[str, str]
) -> Plan:
    assert route.rpc is not None
    plan = _new_plan(party, Kind.CALL, command)
    plan.topic = route.name
    permits = party.room.permits
    plan.judged = permits.allow_all_calls(party.who, route)
    plan.counted = party.room.router.quotas.counts_calls(party.who)
    plan.rpc = route.rpc
    stored.setdefault("version", VERSION)
    stored.setdefault("connection", "Keep-Alive")
    length = request.head.headers.get("content-length")
    if command.body is None and length is not None:
        plan.sized = True
        stored["content-length"] = length
    plan.head = OK + header_text(stored).encode("utf-8", "replace")
    if plan.sized and plan.judged and not plan.counted and may_pass_by(party, request):
        exchange = route.rpc.exchange
        request.head.shortcut = Calling(party.line, plan, exchange, party.room.era)
    return plan


def _plan_route(party: ZbusParty, request: Request, command: Command) -> Plan:
    plan = _new_plan(party, Kind.ROUTE, command)
    headers = command.headers
    plan.recver = headers.get("recver", "")
    status = headers.get("origin_status", "200")
    plan.status = int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 200
    passed = {k: v for k, v in headers.items() if k not in NOT_ROUTED}
    passed.update(party.stamp)
    passed.setdefault("version", VERSION)
    passed.setdefault("connection", "Keep-Alive")
    if "content-length" in headers:
        plan.sized = True
        passed["content-length"] = headers["content-length"]
    plan.head = status_line(plan.status) + header_text(passed).encode("utf-8", "replace")
    target = party.room.parties.get(plan.recver)
    if plan.sized and target is not None and may_pass_by(party, request):
        request.head.shortcut = Answering(party.line, plan, target.line, party.room.era)
    return plan


def may_pass_by(party: ZbusParty, request: Request) -> bool:
    """Whether requests with this head may pass by the party, which looks at everything."""
    return not (request.head.ordered or party.connection.framed or party.room.tracers)


def _plan_consume(party: ZbusParty, request: Request, command: Command) -> Plan | None:
    room = party.room
    if not command.topic:
        request.send(answers.bad(request.id, "", "Missing topic"))
        return None
    route = room.route(command.topic)
    if route is None:
        request.send(answers.no_topic(request.id, command.topic))
        return None
    plan = _new_plan(party, Kind.CONSUME, command)
    plan.topic = route.name
    # Ours: clients that keep several consumes waiting say so; the original ones rely on the replacement.
    plan.several = command.headers.get("consume_several") == "1"
    return plan

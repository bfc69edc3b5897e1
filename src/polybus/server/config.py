"""The settings of a node: one dataclass per section, with every default and its reason.

Invariant: this file is the only list of settings. The TOML keys, the `POLYBUS_…` variables, the error
hints and `polybus config show` are all derived from the fields below; a room that needs settings adds
its section here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from polybus.model.units import DURATION, GIB, MIB, SIZE, US

Seconds = Annotated[float, DURATION]
Bytes = Annotated[int, SIZE]

DEFAULT_LISTEN = "tcp://127.0.0.1:15555"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that protect the node and one connection from another."""

    max_frame: Bytes = 64 * MIB  # largest frame of a peer; no stock client sends more than 16 MiB
    pending_bytes: Bytes = 64 * MIB  # queued towards one connection
    memory_budget: Bytes = 1 * GIB  # of all peers together; beyond it the largest holder is cut
    forward_timeout: Seconds = 30  # a call waits this long for room at its service, then it fails
    write_timeout: Seconds = 30  # a peer that takes nothing for so long is closed
    slow_subscriber: Literal["drop", "disconnect"] = "drop"  # what a full queue costs it
    first_byte: Seconds = 300  # a new peer may be silent; some are until their first heartbeat
    decide: Seconds = 5  # from the first byte until the protocol must be known
    names: int = 100_000  # services, and as many subscriptions, of one connection
    linger: Seconds = 50 * US  # to look out for more input before sleeping, if that pays; 0: never
    drain: Seconds = 10  # stopping takes so long at the most, and lets what is in flight finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Who may do what; read again on SIGHUP. Without rules this machine is open and strangers are shut out."""

    allow_anonymous: bool = False  # without rules: let everybody in, as the originals do
    rules: tuple[str, ...] = ()  # `WHO may VERBS on NAMES`; what none of them allows is refused
    tokens: tuple[str, ...] = ()  # `NAME sha256:HEX` or `NAME file:PATH`; the bearer is token:NAME
    limits: tuple[str, ...] = ()  # `WHO at most 10 connections 100 calls 1MiB/s 5 topics`


@dataclass(frozen=True, slots=True, kw_only=True)
class Gsb:
    """The Golem Service Bus."""

    ping_timeout: Seconds = 60  # silent so long: pinged; twice: closed; also GSB_PING_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class T2:
    """The T2 Bus."""

    matching: Literal["upstream", "documented"] = "upstream"  # as the real server, or its document
    stop: Literal["local", "any", "never"] = "local"  # whose Stop message ends the node


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """Browsers and other HTTP clients."""

    origins: tuple[str, ...] = ()  # pages of other origins that may change things; * is all
    hosts: tuple[str, ...] = ()  # names by which browsers reach this node, beside localhost
    max_body: Bytes = 32 * MIB  # of an HTTP or Zbus request, as the stock server; more gets 413


@dataclass(frozen=True, slots=True, kw_only=True)
class Zbus:
    """Zbus: MQ, RPC and trackers."""

    advertise: str = ""  # host:port that clients are told; empty: the first TCP listener
    trackers: tuple[str, ...] = ()  # host:port of the trackers to join
    masks: Literal["0.8", "0.9"] = "0.8"  # whose bits pause, exclusive and delete-on-exit are
    filters: Literal["0.8", "0.9"] = "0.8"  # whether a trailing * is the rest or one part
    rpc_urls: Literal["method", "module"] = "method"  # what comes after the topic in a URL
    deduplicate: bool = False  # take a message id that comes again for a retry
    tokens: tuple[str, ...] = ()  # rules `token: operations on topics`; none: everybody may
    certificate: str = ""  # PEM file that the command ssl hands out


@dataclass(frozen=True, slots=True, kw_only=True)
class Rmb:
    """The Reliable Message Bus; off until the node is told which twin it is."""

    twin: int = 0  # the own number; 0: this node is no twin
    key_file: Path | None = None  # 0x and 64 hex digits, or a phrase
    key_type: Literal["sr25519", "ed25519"] = "sr25519"  # of the secret in key_file
    twins: str = ""  # directory: a file, http(s)://… or graphql+http(s)://…
    redis: str = "embedded"  # redis://host:port, unix:///path, or a server of our own
    generation: Literal["rs", "v1", "v2", "documented"] = "rs"  # whose keys and rules
    push_side: Literal["left", "right"] = "left"  # where clients push, as all real ones do
    services: tuple[str, ...] = ()  # commands offered to other wires, such as wallet.**
    workers: int = 1000  # messages on their way to other twins, as the original
    max_body: Bytes = 20 * MIB  # of a message
    max_queue: int = 500  # requests that wait for one command's handlers, as the original
    max_pending: int = 200_000  # requests of local clients that wait for answers
    twin_rate: int = 600_000  # messages of one other twin in a minute
    clock_skew: Seconds = 60  # how far a peer's clock may be ahead
    ca: str = ""  # PEM file that https:// twins are verified with; empty: the system's
    uploads: Path | None = None  # folder of files from other twins; empty: none are taken
    proxy: bool = False  # serve requests inside the envelopes of other twins


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What passes live and is to be kept: publications, or calls with their replies."""

    pattern: str  # of shared names, such as price/**
    topic: str  # where they go; declared if it is missing
    kind: Literal["publication", "call"] = "publication"  # call: requests and replies, in full


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """A topic whose new records are published live."""

    topic: str  # whose records they are
    name: str = ""  # the shared name; empty: the one that each record was captured under


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A second name of a service, for wires that cannot spell its own."""

    name: str  # what callers say
    target: str  # the service that is meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One row per ended call, publication, produce, delivery and error, in the topic polybus.journal."""

    enabled: bool = False  # nothing is written until then
    keep: Seconds = 7 * 86400  # older rows go
    keep_bytes: Bytes = 4 * GIB  # and the oldest beyond that; 0: no bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the node says on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"  # what is less is not said
    format: Literal["auto", "text", "json"] = "auto"  # auto: text on a terminal, else JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything a node is told before it starts."""

    listen: tuple[str, ...] = (DEFAULT_LISTEN,)  # addresses, see above
    data: Path | None = Path("polybus-data")  # folder of the durable topics; empty: none
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    gsb: Gsb = field(default_factory=Gsb)
    t2: T2 = field(default_factory=T2)
    http: Http = field(default_factory=Http)
    zbus: Zbus = field(default_factory=Zbus)
    rmb: Rmb = field(default_factory=Rmb)
    journal: Journal = field(default_factory=Journal)
    capture: tuple[Capture, ...] = ()
    relay: tuple[Relay, ...] = ()
    alias: tuple[Alias, ...] = ()
    log: Log = field(default_factory=Log)

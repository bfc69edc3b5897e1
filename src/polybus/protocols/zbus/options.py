"""Settings of the Zbus room.

Invariant: every default is what the documented server did, except where that lost or leaked something.
"""

from __future__ import annotations

from dataclasses import dataclass

from polybus.protocols.zbus.masks import Dialect


@dataclass(frozen=True, slots=True)
class ZbusOptions:
    """What the node hands over."""

    advertise: str = "127.0.0.1:15555"  # what clients are told to connect to
    ssl: bool = False  # whether that address speaks TLS
    masks: Dialect = "0.8"
    filters: Dialect = "0.8"
    rpc_urls: str = "method"  # or "module": /topic/module/method/args, as the last versions had it
    # Whether a message id that comes again within the topic's window is a retry
    deduplicate: bool = False
    trackers: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()  # rules, see `tokens`; none: everybody may do everything
    certificate: str = ""  # PEM file that the command `ssl` hands out
    max_body: int = 32 * 1024 * 1024  # of a call from another wire; what its answer may be as well
    rpc_queue_bytes: int = 64 * 1024 * 1024  # calls that wait for a busy service, per topic
    rpc_queue_calls: int = 65_536
    # Consumes of one connection and group that may wait, for clients that ask for it
    max_waiting: int = 1024

"""The SDK: `polybus.connect(url)` gives a bus, the scheme picks the wire."""

from __future__ import annotations

from polybus.client.bus import Bus
from polybus.client.connect import connect, connect_sync
from polybus.client.consumption import Consumption, Received
from polybus.client.message import Message
from polybus.client.subscription import Subscription
from polybus.client.sync import SyncBus

__all__ = [
    "Bus",
    "Consumption",
    "Message",
    "Received",
    "Subscription",
    "SyncBus",
    "connect",
    "connect_sync",
]

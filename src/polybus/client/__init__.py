"""The SDK: `polybus.connect(url)` gives a bus, the scheme picks the wire."""

from __future__ import annotations

from polybus.client.bus import Bus
from polybus.client.connect import connect
from polybus.client.message import Message
from polybus.client.subscription import Subscription

__all__ = ["Bus", "Message", "Subscription", "connect"]

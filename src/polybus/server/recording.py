"""What a node keeps of its own traffic, and gives back: journal, captures, relays, aliases (DESIGN 3).

Invariant: nothing of it is there unless the settings ask for it; a node without durable topics refuses to start with
settings that need them.
"""

from __future__ import annotations

from functools import partial

from polybus.core.alias import Aliases
from polybus.core.capture import Capture, Captures
from polybus.core.engine import TopicOptions
from polybus.core.journal import Journal
from polybus.core.relays import Relay, Relays
from polybus.core.router import Router
from polybus.core.topics import Topics
from polybus.core.watch import Watch
from polybus.errors import ConfigError, InvalidName
from polybus.model import journal
from polybus.server.config import Config
from polybus.transports.connection import Connection


class Recording:
    """Built before the node starts, begun once its topics are there."""

    def __init__(self, router: Router, topics: Topics | None, config: Config) -> None:
        """Check the settings.

        Raises:
            ConfigError: a bad name or pattern, or no durable topics.
        """
        self._router = router
        self._topics = topics
        self._options = TopicOptions(
            durability="os",
            retain_ms=int(config.journal.keep * 1000),
            retain_bytes=config.journal.keep_bytes,
        )
        self.journal: Journal | None = None
        self.captures: Captures | None = None
        self.relays: Relays | None = None
        self.aliases: Aliases | None = None
        self._journaled = config.journal.enabled
        wanted = [name for name in ("capture", "relay") if getattr(config, name)]
        if config.journal.enabled:
            wanted.append("journal")
        if wanted and topics is None:
            raise ConfigError(f"{wanted[0]} needs durable topics; give the node a data folder")
        try:
            if config.alias:
                names = {each.name: each.target for each in config.alias}
                self.aliases = Aliases(router, names)
            if topics is not None and (config.journal.enabled or config.capture):
                self._watch(router, topics, config)
            if topics is not None and config.relay:
                relays = [Relay(each.topic, each.name) for each in config.relay]
                self.relays = Relays(router, topics, relays)
        except InvalidName as exc:
            raise ConfigError(exc.text) from exc

    def _watch(self, router: Router, topics: Topics, config: Config) -> None:
        self.journal = Journal(router.clock, partial(topics.produce_joined, journal.TOPIC))
        if config.capture:
            rules = [Capture(each.pattern, each.topic, each.kind) for each in config.capture]
            self.captures = Captures(router, topics, rules)

    async def start(self) -> None:
        """Begin; the topics are there."""
        if self.aliases is not None:
            self.aliases.start()
        if self.journal is not None and self._topics is not None:
            if self._journaled:
                await self._topics.declare(journal.TOPIC, self._options)
            watch = Watch(self.journal, self.captures, self._journaled)
            self._router.note_by(watch, self.journal if self._journaled else None)
            self._topics.journal = self._topics.groups.journal = self._router.journal
        if self.captures is not None:
            self.captures.start()
        if self.relays is not None:
            await self.relays.start()

    def tick(self) -> None:
        """Hand over what was collected."""
        if self.journal is not None:
            self.journal.tick()

    def refused(self, connection: Connection, reason: str) -> None:
        """A peer has sent what its wire does not allow."""
        if self._router.journal is not None:
            wire = getattr(connection.session, "wire", "")
            self._router.journal.error(wire, connection.peer, reason)

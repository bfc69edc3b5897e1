"""Who may do what, by token (protocol page §11). Off unless rules are given.

A rule is one line: `token: operations on topics`, where operations are a comma list of commands or `*`, and topics a
comma list of `topic`, `topic/group` or `*` (all of them when left out). An empty token is everybody who gives none.

    admin-secret: *
    shop: produce, consume on orders, stock/shop
    : query

Invariant: with rules in force, what no rule allows is denied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polybus.errors import ConfigError
from polybus.http.site import bearer_token

EXEMPT: Final = frozenset({"heartbeat", "file", "login", "logout"})


@dataclass(frozen=True, slots=True)
class Rule:
    """What one token may do."""

    operations: frozenset[str]
    topics: frozenset[str]  # lower case; `*`, `topic` or `topic/group`

    def allows(self, operation: str, topic: str, group: str) -> bool:
        """Whether this rule lets the bearer do it."""
        if "*" not in self.operations and operation not in self.operations:
            return False
        if "*" in self.topics or not topic:
            return True
        topic, group = topic.lower(), group.lower()
        return topic in self.topics or f"{topic}/{group or topic}" in self.topics

    def shows(self, topic: str) -> bool:
        """Whether the bearer sees anything of the topic."""
        topic = topic.lower()
        return (
            "*" in self.topics
            or topic in self.topics
            or any(entry.startswith(topic + "/") for entry in self.topics)
        )


class Tokens:
    """All rules; falsy when there are none."""

    def __init__(self, lines: tuple[str, ...] = ()) -> None:
        """Raises ConfigError for a line that is no rule."""
        self._rules: dict[str, Rule] = {}
        for line in lines:
            token, rule = parse_rule(line)
            if token in self._rules:
                raise ConfigError(f"two rules for the Zbus token {token!r}")
            self._rules[token] = rule

    def __bool__(self) -> bool:
        return bool(self._rules)

    def rule(self, token: str) -> Rule | None:
        """The rule of a token."""
        return self._rules.get(token)

    def may(self, token: str, operation: str, topic: str = "", group: str = "") -> bool:
        """Whether the bearer of `token` may do it."""
        if not self._rules or operation in EXEMPT:
            return True
        rule = self._rules.get(token)
        return rule is not None and rule.allows(operation, topic, group)

    def shows(self, token: str, topic: str) -> bool:
        """Whether the bearer of `token` sees the topic in lists."""
        if not self._rules:
            return True
        rule = self._rules.get(token)
        return rule is not None and rule.shows(topic)


def parse_rule(line: str) -> tuple[str, Rule]:
    """One line as above."""
    token, colon, rest = line.partition(":")
    operations, _, topics = rest.partition(" on ")
    names = frozenset(part.strip().lower() for part in operations.split(",") if part.strip())
    where = frozenset(part.strip().lower() for part in topics.split(",") if part.strip())
    if not colon or not names:
        raise ConfigError(f"{line!r} is no Zbus token rule; write `token: operations on topics`")
    return token.strip(), Rule(names, where or frozenset({"*"}))


def token_of(headers: dict[str, str]) -> str:
    """The token of a request: header (or URL parameter, which is one by now), else as the rest of HTTP has it."""
    token = headers.get("token")
    return bearer_token(headers) if token is None else token

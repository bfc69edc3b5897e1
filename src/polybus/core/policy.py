"""The one question asked before anything is done for a party: may it?

Invariant: the answer depends on identity, verb and name alone, so that it can be cached until `epoch` changes.
A pattern
is allowed only if one rule covers it entirely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from polybus.core.endpoint import Identity
from polybus.errors import ConfigError
from polybus.model.pattern import check_pattern, contains

Verb = Literal["register", "call", "publish", "subscribe", "produce", "consume", "declare", "admin"]
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)
KINDS: Final = ("anonymous", "certificate", "local", "token", "twin", "uid")
ANY: Final = "*"

MAX_CACHED: Final = 8192  # verdicts; names are few where traffic is heavy
MAX_CACHED_LENGTH: Final = 1024  # characters of a name; nobody's usual name is longer


class Policy(Protocol):
    """Decides; `epoch` rises whenever an answer may have changed."""

    epoch: int

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        """Whether `identity` may do `verb` with the shared name or pattern `name`."""


class OpenPolicy:
    """Everybody may do everything: the originals' rule."""

    epoch = 0

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Rule:
    """Lets an identity do something with some names; what no rule allows is refused."""

    identity: str  # kind, kind:name, or * for everybody
    verbs: tuple[str, ...]  # or * for all of them
    names: tuple[str, ...] = ("**",)

    def check(self) -> None:
        """Raise unless the rule makes sense.

        Raises:
            ConfigError: an unknown kind of identity or verb, or no pattern.
        """
        kind = self.identity.partition(":")[0]
        if kind != ANY and kind not in KINDS:
            raise ConfigError(
                f"rule for {self.identity!r}: no such kind; known are {', '.join(KINDS)}"
            )
        for verb in self.verbs:
            if verb != ANY and verb not in VERBS:
                raise ConfigError(
                    f"rule for {self.identity!r}: no such verb {verb!r}; known are {', '.join(VERBS)}"
                )
        for name in self.names:
            check_pattern(name)

    def allows(self, identity: Identity, verb: Verb, name: str) -> bool:
        if self.identity not in (ANY, identity.kind, str(identity)):
            return False
        if ANY not in self.verbs and verb not in self.verbs:
            return False
        return any(contains(pattern, name) for pattern in self.names)


class RulePolicy:
    """The operator's rules, or, without any, this machine open and strangers shut out.

    The program that embeds the node is always allowed: it could change the rules as well.
    """

    def __init__(self, rules: Sequence[Rule] = (), *, allow_anonymous: bool = False) -> None:
        self.epoch = 0
        self._rules: Sequence[Rule] = ()
        self._allow_anonymous = False
        self._verdicts: dict[tuple[Identity, Verb, str], bool] = {}
        self.replace(rules, allow_anonymous=allow_anonymous)

    def replace(self, rules: Sequence[Rule], *, allow_anonymous: bool = False) -> None:
        """Take other rules from now on; nothing that is under way ends.

        Raises:
            ConfigError, InvalidName: a rule makes no sense; the old ones stay.
        """
        for rule in rules:
            rule.check()
        self._rules = tuple(rules)
        self._allow_anonymous = allow_anonymous
        self._verdicts.clear()
        self.epoch += 1

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        key = (identity, verb, name)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._decide(identity, verb, name)
            if len(self._verdicts) >= MAX_CACHED:
                self._verdicts.clear()
            if len(name) <= MAX_CACHED_LENGTH:
                self._verdicts[key] = verdict
        return verdict

    def _decide(self, identity: Identity, verb: Verb, name: str) -> bool:
        if identity.kind == "local":
            return True
        if self._rules:
            return any(rule.allows(identity, verb, name) for rule in self._rules)
        # A stranger on another machine: whoever wants the originals' openness says so.
        return identity != STRANGER or self._allow_anonymous


STRANGER: Final = Identity("anonymous")
"""A peer on another machine that has proved nothing."""

NEIGHBOUR: Final = Identity("anonymous", "loopback")
"""A peer on this machine that has proved nothing."""

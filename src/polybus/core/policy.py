"""The one question asked before anything is done for a party: may it?

Invariant: the answer depends on identity, verb and name alone, so that it can be cached until `epoch` changes.
A pattern is allowed only if one rule covers it entirely.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self, get_args

from polybus.core.endpoint import Identity
from polybus.errors import ConfigError, InvalidName
from polybus.model.name import MAX_NAME_BYTES
from polybus.model.pattern import check_pattern, contains, matches

Verb = Literal["register", "call", "publish", "subscribe", "produce", "consume", "declare", "admin"]
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)
KINDS: Final = ("anonymous", "certificate", "local", "token", "twin", "uid")
ANY: Final = "*"
EVERYTHING: Final = "**"  # as a pattern of names

MAX_CACHED: Final = 8192  # verdicts; names are few where traffic is heavy
MAX_CACHED_LENGTH: Final = 1024  # characters of a name; nobody's usual name is longer

_BETWEEN: Final = re.compile(r"[,\s]+")


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
    names: tuple[str, ...] = (EVERYTHING,)

    @classmethod
    def parse(cls, text: str) -> Self:
        """A rule as the operator writes it: `WHO may VERBS` or `WHO may VERBS on NAMES`.

        Raises:
            ConfigError: it does not read so, or makes no sense.
        """
        who, may, rest = text.partition(" may ")
        verbs, on, names = rest.partition(" on ")
        rule = cls(who.strip(), _words(verbs), _words(names) if on else (EVERYTHING,))
        if not (who.strip() and may and rule.verbs and rule.names):
            raise ConfigError(f"{text!r} is no rule; write `WHO may VERBS on NAMES`")
        rule.check()
        return rule

    def check(self) -> None:
        """Raise unless the rule makes sense.

        Raises:
            ConfigError: an unknown kind of identity or verb, or no pattern.
        """
        check_who(self.identity)
        for verb in self.verbs:
            if verb != ANY and verb not in VERBS:
                raise ConfigError(
                    f"rule for {self.identity!r}: no such verb {verb!r}; known are {', '.join(VERBS)}"
                )
        for name in self.names:
            try:
                check_pattern(name)
            except InvalidName as exc:
                raise ConfigError(f"rule for {self.identity!r}: {exc.text}") from exc

    def allows(self, identity: Identity, verb: Verb, name: str) -> bool:
        if not is_meant(self.identity, identity):
            return False
        if ANY not in self.verbs and verb not in self.verbs:
            return False
        # What is longer is no shared name; it would hold the loop, and only a rule for everything can mean it.
        known = len(name) <= MAX_NAME_BYTES
        return any(p == EVERYTHING or (known and contains(p, name)) for p in self.names)


def check_who(text: str) -> None:
    """Raise unless a text can be the first word of a rule.

    Raises:
        ConfigError.
    """
    kind = text.partition(":")[0]
    if text != ANY and kind not in KINDS:
        raise ConfigError(f"rule for {text!r}: no such kind; known are {', '.join(KINDS)}")


def is_meant(who: str, identity: Identity) -> bool:
    """Whether the first word of a rule (kind, kind:name or *) names this identity."""
    return who in (ANY, identity.kind) or who == str(identity)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in _BETWEEN.split(text) if word)


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
            ConfigError: a rule makes no sense; the old ones stay.
        """
        for rule in rules:
            rule.check()
        self._rules = tuple(rules)
        self._allow_anonymous = allow_anonymous
        self._verdicts.clear()
        self.epoch += 1

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        if not self._rules:
            # A stranger on another machine: whoever wants the originals' openness says so.
            return self._allow_anonymous or identity.kind != "anonymous" or identity.name != ""
        key = (identity, verb, name)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._decide(identity, verb, name)
            if len(self._verdicts) >= MAX_CACHED:
                self._verdicts.clear()
            if len(name) <= MAX_CACHED_LENGTH:
                self._verdicts[key] = verdict
        return verdict

    def touches(self, identity: Identity, name: str) -> bool:
        """Whether an identity may do anything at all with a name or with one below it."""
        if not self._rules or identity.kind == "local":
            return self.may(identity, "admin", name)
        return any(
            is_meant(rule.identity, identity) and any(matches(p, f"{name}/**") for p in rule.names)
            for rule in self._rules
        )

    def _decide(self, identity: Identity, verb: Verb, name: str) -> bool:
        if identity.kind == "local":
            return True
        return any(rule.allows(identity, verb, name) for rule in self._rules)


def may_see(policy: Policy, identity: Identity, name: str) -> bool:
    """Whether a name is shown to an identity: it may do anything with it, or with something below it."""
    if isinstance(policy, RulePolicy):
        return policy.touches(identity, name)
    return any(policy.may(identity, verb, name) for verb in VERBS)


STRANGER: Final = Identity("anonymous")
"""A peer on another machine that has proved nothing."""

NEIGHBOUR: Final = Identity("anonymous", "loopback")
"""A peer on this machine that has proved nothing."""

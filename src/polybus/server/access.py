"""The section [policy] at work: rules, tokens and limits, replaced as a whole.

Invariant: a section that is wrong in any part changes nothing; the secret of a token is kept as its
hash alone and is in no log and no error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from polybus.core.endpoint import Identity
from polybus.core.limits import Quota
from polybus.core.policy import Policy, Rule, RulePolicy
from polybus.core.router import Router
from polybus.errors import ConfigError, NotAuthorized
from polybus.http.request import Request
from polybus.http.site import TEXT, Guard, bearer_token, denial
from polybus.monitor.actions import EVERYTHING
from polybus.protocols.zbus.permits import BEARER
from polybus.server import config
from polybus.server.identity import identity_of
from polybus.transports.connection import Connection
from polybus.transports.url import Address

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_CHALLENGE: Final = {**TEXT, "www-authenticate": "Bearer"}
# Beside the API, which asks for itself. /healthz and /readyz are for probes, which have no token.
_WATCHING: Final = ("/metrics", "/nodes", "/events")
_NAME: Final = re.compile(r"[\w.@-]+")


class Access:
    """Who somebody is, and what the node lets them do."""

    def __init__(self, settings: config.Policy, policy: Policy | None = None) -> None:
        """Take the settings; `policy` is the program's own, which then decides instead of the rules.

        Raises:
            ConfigError.
        """
        self._rules = RulePolicy()
        self.policy: Policy = self._rules if policy is None else policy
        self._tokens: Mapping[bytes, Identity] = {}
        self._router: Router | None = None
        self._quotas: Sequence[Quota] = ()
        self._settings = settings
        self.other: Callable[[str], object] = lambda token: None
        """Finds a token that a wire has rules of its own for; its bearer is token:zbus."""
        self.replace(settings)

    def replace(self, settings: config.Policy) -> None:
        """Go by other settings from now on; nothing that is under way ends here.

        Raises:
            ConfigError: something in them is wrong; the old ones stay.
        """
        rules = [Rule.parse(text) for text in settings.rules]
        if rules and settings.allow_anonymous:
            raise ConfigError(
                "policy.allow_anonymous counts only where there are no rules; "
                "write a rule `anonymous may …` instead"
            )
        tokens = read_tokens(settings.tokens)
        quotas = [Quota.parse(text) for text in settings.limits]
        self._tokens, self._quotas, self._settings = tokens, quotas, settings
        if self._router is not None:
            self._router.set_quotas(quotas)
        self._rules.replace(rules, allow_anonymous=settings.allow_anonymous)

    def join(self, router: Router) -> None:
        """Watch over a router."""
        self._router = router
        router.set_quotas(self._quotas)

    @property
    def has_tokens(self) -> bool:
        """Whether there are tokens at all; without any, what clients call a token means nothing here."""
        return bool(self._tokens)

    def bearer(self, token: str) -> Identity | None:
        """Whose token that is."""
        if not token:
            return None
        found = self._tokens.get(_digest(token)) if self._tokens else None
        return BEARER if found is None and self.other(token) is not None else found

    def knows(self, identity: Identity) -> bool:
        """Whether a token by which somebody became this identity still counts."""
        known = identity.kind != "token" or identity == BEARER
        return known or identity in self._tokens.values()

    def identify(self, connection: Connection, token: str) -> Identity:
        """Who a connection is that showed a token, or an empty one.

        Raises:
            NotAuthorized: there are tokens, and this is none of them.
        """
        found = self.bearer(token)
        if found is None and token and self._tokens:
            raise NotAuthorized("a client", "connect with", "a token that nobody has")
        return found or identity_of(connection)

    def who_asks(self, request: Request) -> Identity:
        """Who an HTTP request is from: its token's owner, or whoever the connection is."""
        own: Identity = request.connection.identity
        return self.bearer(bearer_token(request.head.headers)) or own

    def guard(self, router: Router) -> Guard:
        """Refuses, with 401 or 403, what the policy does not allow of the reserved paths."""

        def passes(request: Request) -> bool:
            token = bearer_token(request.head.headers)
            # The page itself holds nothing, and is where somebody with an old token can show another one.
            page = request.path == "/" or request.path.startswith("/static/")
            if token and self._tokens and self.bearer(token) is None and not page:
                request.respond(401, _CHALLENGE, b"401: a token that nobody has\n")
                return False
            if not request.path.startswith(_WATCHING):
                return True  # open to all, or asked about where it is served
            who = self.who_asks(request)
            if router.policy.may(who, "subscribe", EVERYTHING):
                return True
            status, challenge = denial(request)
            text = f"{status}: {who} may not subscribe {EVERYTHING}\n"
            request.respond(status, {**TEXT, **challenge}, text.encode())
            return False

        return passes

    def wants_token(self, request: Request) -> bool:
        """Whether an HTTP request that was refused is from nobody in particular, and there are tokens."""
        return bool(self._tokens) and self.who_asks(request).kind == "anonymous"

    def note(self, addresses: Sequence[Address]) -> str:
        """What an operator should know of it when the node starts; empty when that is nothing."""
        settings = self._settings
        if self.policy is not self._rules:
            return ""
        if settings.rules:
            return f"policy {len(settings.rules)} rules decide, what none of them allows is refused"
        if all(_is_local(address) for address in addresses):
            return ""
        if settings.allow_anonymous:
            return "policy open to everybody on every address (allow_anonymous = true)"
        return (
            "policy open to this machine, closed to strangers from any other; "
            "[policy] allow_anonymous = true lets them in"
        )


def read_tokens(texts: Sequence[str]) -> dict[bytes, Identity]:
    """The identities of `NAME sha256:HEX` and `NAME file:PATH` by the hash of their secret.

    Raises:
        ConfigError: a text does not read so, a file cannot be read, or two secrets are the same.
    """
    found: dict[bytes, Identity] = {}
    for text in texts:
        name, _, source = text.partition(" ")
        kind, _, rest = source.strip().partition(":")
        if not _NAME.fullmatch(name) or kind not in ("sha256", "file"):
            # Not shown: a mistake here may well be a secret in plain text.
            raise ConfigError(
                f"policy.tokens: the entry that begins with {name[:20]!r} is neither "
                "`NAME sha256:HEX` nor `NAME file:PATH`"
            )
        digest = _read_secret(name, Path(rest)) if kind == "file" else _read_hash(name, rest)
        if digest in found:
            raise ConfigError(f"policy.tokens: {found[digest].name} and {name} have one secret")
        found[digest] = Identity("token", name)
    return found


def _read_hash(name: str, text: str) -> bytes:
    if not _SHA256.fullmatch(text.lower()):
        raise ConfigError(f"policy.tokens: the hash of {name} is not 64 hexadecimal digits")
    return bytes.fromhex(text)


def _read_secret(name: str, path: Path) -> bytes:
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"policy.tokens: cannot read the secret of {name}: {exc}") from exc
    if not secret:
        raise ConfigError(f"policy.tokens: the secret of {name} in {path} is empty")
    return _digest(secret)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _is_local(address: Address) -> bool:
    return address.scheme == "unix" or address.host in ("127.0.0.1", "::1", "localhost")

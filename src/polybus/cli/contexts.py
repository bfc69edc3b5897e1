"""Saved connections: names for URLs, and the one that is used when a verb is told nothing else.

Invariant: the file is replaced as a whole, so that a reader finds the old one or the new one; only its owner may
read it, since a URL can name key files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from polybus.errors import ConfigError


class Contexts(msgspec.Struct):
    """What the file holds."""

    current: str = ""
    """The name in use; empty: none."""
    urls: dict[str, str] = {}


def contexts_file(env: Mapping[str, str]) -> Path:
    """Where they are kept: in the user's configuration folder."""
    folder = env.get("XDG_CONFIG_HOME") or ""
    # The XDG rules: a path that is not absolute counts as not set.
    home = Path(folder) if folder.startswith("/") else Path.home() / ".config"
    return home / "polybus" / "contexts.json"


def read_contexts(env: Mapping[str, str]) -> Contexts:
    """All contexts; none when there is no file.

    Raises:
        ConfigError: it cannot be read, or is not what we write.
    """
    path = contexts_file(env)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.MsgspecError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc


def write_contexts(env: Mapping[str, str], contexts: Contexts) -> None:
    """Replace the file.

    Raises:
        ConfigError: it cannot be written.
    """
    path = contexts_file(env)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(file, "wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
        fresh.replace(path)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc


def chosen_url(flag: str | None, env: Mapping[str, str]) -> str | None:
    """The node to talk to: the flag, else POLYBUS_URL, else the context in use; None is the default address."""
    if flag or env.get("POLYBUS_URL"):
        return flag or env["POLYBUS_URL"]
    contexts = read_contexts(env)
    return contexts.urls.get(contexts.current)

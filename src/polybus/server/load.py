"""Puts a `Config` together from the TOML file, the environment and the flags, in rising precedence.

Invariant: every value is checked with the name of where it came from, and that origin is kept; a key
that means nothing is an error which names the nearest one that does.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

from polybus.errors import ConfigError
from polybus.model.units import Unit
from polybus.protocols.gsb.client import parse_url as parse_gsb_url
from polybus.server.config import Config

PREFIX: Final = "POLYBUS_"
# Variables of other programs that a drop-in replacement has to honour.
FOREIGN: Final = {"GSB_PING_TIMEOUT": "gsb.ping_timeout"}
GSB_URL: Final = "GSB_URL"
CONFIG_FILE: Final = "POLYBUS_CONFIG"
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the configuration, in dotted form, with its type and default."""

    key: str
    hint: Any
    default: object

    @property
    def variable(self) -> str:
        return PREFIX + self.key.replace(".", "_").upper()

    def show(self, value: object) -> str:
        """The value as it would be written in a file, without quotes."""
        unit = _unit(self.hint)
        if unit is not None and isinstance(value, (int, float)):
            return unit.show(value)
        if isinstance(value, tuple):
            return ", ".join(map(_show_item, value))
        if isinstance(value, bool):
            return str(value).lower()
        return "" if value is None else str(value)


def _show_item(item: object) -> str:
    if not dataclasses.is_dataclass(item) or isinstance(item, type):
        return str(item)
    pairs = ", ".join(f"{key} = {value!r}" for key, value in dataclasses.asdict(item).items())
    return "{" + pairs + "}"


@dataclass(frozen=True, slots=True)
class Effective:
    """A configuration and, for each dotted key, where its value came from."""

    config: Config
    origins: Mapping[str, str]


def _unit(hint: Any) -> Unit | None:
    return next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Unit)), None)


def settings(cls: type = Config, prefix: str = "") -> Iterator[Setting]:
    """Every setting there is, sections after the plain keys, in the order of `config.py`."""
    hints = get_type_hints(cls, include_extras=True)
    sections = []
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            sections.append((hint, f"{prefix}{item.name}."))
        else:
            yield Setting(prefix + item.name, hint, item.default)
    for section, name in sections:
        yield from settings(section, name)


SETTINGS: Final = {setting.key: setting for setting in settings()}
_VARIABLES: Final = {setting.variable: setting for setting in SETTINGS.values()}
_SECTIONS: Final = {key.split(".")[0] for key in SETTINGS if "." in key}


def load(
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Effective:
    """The effective configuration.

    Args:
        file: A TOML file; without it the one that POLYBUS_CONFIG names, if any.
        env: The environment; only its `POLYBUS_…` and `GSB_…` variables are looked at.
        flags: Values of the command line by dotted key; None means "not given".

    Raises:
        ConfigError: unreadable file, unknown key, or a value that does not fit; the text names the origin.
    """
    env = env or {}
    if file is None and env.get(CONFIG_FILE):
        file = Path(env[CONFIG_FILE])
    values: dict[str, object] = {s.key: s.default for s in SETTINGS.values()}
    origins = dict.fromkeys(SETTINGS, "default")
    layers = [_from_file(file)] if file is not None else []
    layers += [_from_env(env), _from_flags(flags or {})]
    for layer in layers:
        for key, raw, origin in layer:
            values[key] = _checked(SETTINGS[key], raw, origin)
            origins[key] = origin
    if env.get(GSB_URL):
        listen = values["listen"]
        assert isinstance(listen, tuple)
        values["listen"] = (*listen, _pinned_to_gsb(env[GSB_URL]))
        origins["listen"] += f" + {GSB_URL}"
    return Effective(_build(Config, "", values), types.MappingProxyType(origins))


def _from_file(path: Path) -> Iterator[tuple[str, object, str]]:
    try:
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is not valid TOML: {exc}") from exc
    for key, raw in table.items():
        if key in _SECTIONS and isinstance(raw, dict):
            for name, value in raw.items():
                yield _known(f"{key}.{name}", str(path)), value, str(path)
        else:
            yield _known(key, str(path)), raw, str(path)


def _from_env(env: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    for variable, key in FOREIGN.items():
        if variable in env:
            yield key, env[variable], variable
    for variable, text in env.items():
        if not variable.startswith(PREFIX):
            continue
        if setting := _VARIABLES.get(variable):
            yield setting.key, text, variable
        elif near := _nearest_variable(variable):
            raise ConfigError(f"unknown variable {variable}; did you mean {near}?")


def _nearest_variable(variable: str) -> str | None:
    """What a variable was meant to be, or None when it is none of ours.

    Not every unknown `POLYBUS_…` is a mistake: container platforms invent such names for a service
    called polybus (`POLYBUS_SERVICE_HOST`). One that names a section of ours, or nearly a setting, is.
    """
    rest = variable.removeprefix(PREFIX).lower()
    names = {v.removeprefix(PREFIX).lower(): v for v in _VARIABLES}
    ours = rest.split("_")[0] in _SECTIONS and "_" in rest
    near = difflib.get_close_matches(rest, names, 1, 0.0 if ours else 0.8)
    return names[near[0]] if near else None


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    for key, raw in flags.items():
        if raw is not None:
            yield _known(key, "flags"), raw, f"--{key.replace('.', '-')}"


def _known(key: str, origin: str) -> str:
    if key in SETTINGS:
        return key
    if key in _SECTIONS:
        raise ConfigError(f"{origin}: {key} is a section; write [{key}]")
    near = difflib.get_close_matches(key, [*SETTINGS, *_SECTIONS], 1, 0.0)
    raise ConfigError(f"{origin}: unknown key {key}; did you mean {near[0]}?")


def _checked(setting: Setting, raw: object, origin: str) -> object:
    try:
        return _value(setting.hint, raw)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{origin}: {setting.key}: {exc}") from exc


def _value(hint: Any, raw: object) -> object:
    """`raw` as a value of the type `hint`; text comes from variables and flags, the rest from TOML."""
    if unit := _unit(hint):
        if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
            raise TypeError(f"{raw!r} is not a {unit.kind} (such as {unit.example})")
        return unit.parse(raw)
    if get_origin(hint) is Literal:
        if raw not in get_args(hint):
            raise ValueError(f"{raw!r} is none of {', '.join(get_args(hint))}")
        return raw
    if get_origin(hint) is tuple and dataclasses.is_dataclass(get_args(hint)[0]):
        raw = raw or []
        if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
            raise TypeError("it is a list of tables; write [[…]] before each, in a file")
        return tuple(_table(get_args(hint)[0], item) for item in raw)
    if get_origin(hint) is tuple:
        items = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(items, (list, tuple)) or not all(isinstance(i, str) for i in items):
            raise TypeError(f"{raw!r} is not a list of texts")
        return tuple(item.strip() for item in items if item.strip())
    if hint is bool and isinstance(raw, str) and raw.lower() in _TRUE + _FALSE:
        return raw.lower() in _TRUE
    if hint == Path | None and isinstance(raw, (str, Path)):
        return Path(raw) if str(raw) else None
    if hint is int and isinstance(raw, str):
        return int(raw)
    if type(raw) is not hint:
        raise TypeError(f"{raw!r} is not a {getattr(hint, '__name__', 'text')}")
    return raw


def _table(cls: Any, raw: Mapping[str, object]) -> object:
    """One table of a list of them."""
    known = {setting.key: setting for setting in settings(cls)}
    for key in raw:
        if key not in known:
            raise ValueError(f"unknown key {key}; known are {', '.join(known)}")
    for key, setting in known.items():
        if setting.default is dataclasses.MISSING and key not in raw:
            raise ValueError(f"{key} is missing")
    return cls(**{key: _value(known[key].hint, value) for key, value in raw.items()})


def _pinned_to_gsb(url: str) -> str:
    """The address that GSB clients were given, in all forms they take it in, as a listener that speaks only GSB."""
    try:
        address, _hash = parse_gsb_url(url.removeprefix("gsb+"))
    except ConfigError as exc:
        raise ConfigError(f"{GSB_URL}: {exc.text}") from exc
    options = urlencode(address.options)
    return f"gsb+{address}?{options}" if options else f"gsb+{address}"


def _build(cls: type[Any], prefix: str, values: Mapping[str, object]) -> Any:
    hints = get_type_hints(cls)
    return cls(
        **{
            item.name: _build(hints[item.name], f"{prefix}{item.name}.", values)
            if dataclasses.is_dataclass(hints[item.name])
            else values[prefix + item.name]
            for item in dataclasses.fields(cls)
        }
    )

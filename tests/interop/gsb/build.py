"""Build the real parts of the Golem Service Bus from their published crates.

`build.py peer|router` writes the path of the program. Nothing is written into the checkout: sources are
copied, built and kept under the cache folder, so a second run returns at once, and a changed peer is built
again. Cargo speaks on stderr.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROUTER_VERSION: Final = "0.6.4"
PEER: Final = Path(__file__).parent / "peer"


class NoCargo(Exception):
    """There is no cargo on this machine, and the program was not built before."""


def cache() -> Path:
    return Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")


def build_router() -> Path:
    """Return the program ya-sb-router as `cargo install` makes it."""
    root = cache() / f"ya-sb-router-{ROUTER_VERSION}"
    program = root / "bin" / "ya-sb-router"
    with locked():
        if not program.exists():
            version = ("--version", f"={ROUTER_VERSION}", "--features", "bin")
            cargo("install", "ya-sb-router", *version, "--root", str(root), cwd=cache())
    return program


def build_peer() -> Path:
    """Return the interop program, of the sources as they are now."""
    digest = hashlib.sha256()
    for source in [PEER / "Cargo.toml", *sorted(PEER.rglob("*.rs"))]:
        digest.update(f"{source.relative_to(PEER)}\0".encode() + source.read_bytes())
    program = cache() / "gsb-peer" / digest.hexdigest()[:16]
    with locked():
        if not program.exists():
            work = cache() / "gsb-peer" / "crate"
            shutil.copytree(PEER, work, dirs_exist_ok=True)
            cargo("build", "--release", cwd=work)
            # Renamed into place, so that an interrupted copy is never taken for the program.
            copy = program.with_suffix(".new")
            shutil.copy2(cache() / "cargo" / "release" / "gsb-peer", copy)
            copy.rename(program)
    return program


@contextmanager
def locked() -> Iterator[None]:
    """Let one builder at a time into the cache: tests and benches may start together."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cargo(*arguments: str, cwd: Path) -> None:
    if shutil.which("cargo") is None:
        raise NoCargo("there is no cargo on this machine")
    # One target folder for both programs: they share most of their dependencies.
    environment = os.environ | {"PROTOC": protoc(), "CARGO_TARGET_DIR": str(cache() / "cargo")}
    subprocess.run(["cargo", *arguments], cwd=cwd, env=environment, stdout=sys.stderr, check=True)


def protoc() -> str:
    """Return a protobuf compiler: the given one, the installed one, or the one inside grpcio-tools."""
    found = os.environ.get("PROTOC") or shutil.which("protoc")
    if found:
        return found
    wrapper = cache() / "bin" / "protoc"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


if __name__ == "__main__":
    builders = {"peer": build_peer, "router": build_router}
    if len(sys.argv) != 2 or sys.argv[1] not in builders:
        sys.exit("usage: build.py peer|router")
    try:
        sys.stdout.write(f"{builders[sys.argv[1]]()}\n")
    except NoCargo as missing:
        sys.exit(str(missing))

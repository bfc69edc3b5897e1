"""Builds the Java side from the client and server that are published as `io.zbus:zbus:0.9.0`.

Nothing is written into the checkout: the program is compiled into the cache folder together with the jars that Maven
fetched, so a second run returns at once, and a changed program is built again.
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

PEER: Final = Path(__file__).parent / "peer"
ZBUSPY: Final = "0.8.4"
# fastjson 1.2.24 reflects on Throwable (protocol page §13).
JAVA: Final = ("java", "-Xmx512m", "--add-opens", "java.base/java.lang=ALL-UNNAMED")


class NoJava(Exception):
    """There is no Maven or JDK on this machine, and the program was not built before."""


def cache() -> Path:
    return Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")


def build_peer() -> list[str]:
    """The command line that runs the program, without its arguments.

    Raises:
        NoJava.
    """
    digest = hashlib.sha256()
    for source in [PEER / "pom.xml", *sorted(PEER.rglob("*.java"))]:
        digest.update(f"{source.relative_to(PEER)}\0".encode() + source.read_bytes())
    home = cache() / "zbus-peer" / digest.hexdigest()[:16]
    with locked():
        if not home.exists():
            _compile(home)
    return [*JAVA, "-cp", f"{home}/classes:{home}/lib/*", "interop.Peer"]


def install_zbuspy() -> Path:
    """The folder with the published Python client."""
    home = cache() / f"zbuspy-{ZBUSPY}"
    with locked():
        if not home.exists():
            work = cache() / "zbuspy-work"
            shutil.rmtree(work, ignore_errors=True)
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
            run(*pip, "--target", str(work), f"zbuspy=={ZBUSPY}", cwd=cache())
            work.rename(home)
    return home


def _compile(home: Path) -> None:
    if not shutil.which("mvn") or not shutil.which("javac"):
        raise NoJava("mvn and javac are needed")
    work = cache() / "zbus-peer" / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(PEER, work)
    copy = (
        "dependency:copy-dependencies",
        f"-DoutputDirectory={work}/lib",
        "-DincludeScope=runtime",
    )
    run("mvn", "-q", "-B", *copy, cwd=work)
    sources = [str(path) for path in sorted(work.rglob("*.java"))]
    run("javac", "-nowarn", "-d", "classes", "-cp", f"{work}/lib/*", *sources, cwd=work)
    # Renamed into place, so that an interrupted build is never taken for the program.
    work.rename(home)


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


@contextmanager
def locked() -> Iterator[None]:
    """One build at a time, also between processes."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "zbus-peer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

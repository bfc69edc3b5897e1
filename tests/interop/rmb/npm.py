"""The real clients from npm, installed once under the cache folder; nothing is written into the checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

PACKAGES: Final = ("ts-rmb-redis-client@1.0.0",)


class NoNode(Exception):
    """There is no Node.js on this machine."""


def cache() -> Path:
    return Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")


def install() -> Path:
    """The folder `node_modules` with the packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NoNode("this test needs Node.js and npm")
    folder = cache() / "rmb-js"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        modules = folder / "node_modules"
        if not (modules / "ts-rmb-redis-client" / "package.json").exists():
            (folder / "package.json").write_text('{"private": true}')
            command = ["npm", "install", "--no-audit", "--no-fund", *PACKAGES]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=300)
    return modules

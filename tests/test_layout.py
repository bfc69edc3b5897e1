"""The package holds what its public face says, in both its forms."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import polybus

SOURCE = Path(polybus.__file__).parent


def run_python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_importing_the_package_loads_no_other_room():
    loaded = run_python(
        "import sys, polybus; print(*[m for m in sys.modules if m.startswith('polybus.')])"
    )
    assert loaded == "polybus._version"


def test_pure_mode_loads_sources_where_compiled_modules_lie_beside_them():
    modules = [
        ".".join(("polybus", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in SOURCE.rglob("*.pxd")
    ]
    code = "import importlib\n" + "".join(
        f"print(importlib.import_module({m!r}).__file__)\n" for m in modules
    )
    files = run_python(code, POLYBUS_PURE="1").split()
    assert [Path(file).suffix for file in files] == [".py"] * len(modules)


def test_everything_the_package_offers_is_there():
    for name in polybus.__all__:
        assert getattr(polybus, name)


def test_an_unknown_attribute_of_the_package_is_an_attribute_error():
    assert not hasattr(polybus, "no_such_name")


def test_the_package_is_marked_as_typed():
    assert (SOURCE / "py.typed").exists()


@pytest.mark.skipif(not os.environ.get("CI"), reason="only CI promises a compiler")
def test_every_hot_module_is_compiled_where_there_is_a_compiler():
    for types in SOURCE.rglob("*.pxd"):
        assert list(types.parent.glob(f"{types.stem}.*.so")), f"{types.stem} is not compiled"

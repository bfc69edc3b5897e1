"""Builds the hot modules as optional C extensions from their own `.py` files.

The invariant: without Cython, without a compiler, or with POLYBUS_PURE=1, the build succeeds
and the same sources run as plain Python.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

# Modules that are compiled; each has its `.pxd` with the C types beside it.
HOT_MODULES = [
    "polybus.core.backlog",
    "polybus.core.cursor",
    "polybus.core.group",
    "polybus.core.journal",
    "polybus.core.member",
    "polybus.http.head",
    "polybus.http.request",
    "polybus.http.session",
    "polybus.http.turn",
    "polybus.model.cutting",
    "polybus.model.ends",
    "polybus.protocols.gsb.relay",
    "polybus.protocols.t2.relay",
    "polybus.protocols.zbus.deliveries",
    "polybus.protocols.zbus.relay",
    "polybus.storage.batches",
    "polybus.storage.gathering",
    "polybus.storage.intake",
    "polybus.storage.topic_log",
]


def source_of(module: str) -> Path:
    return Path("src", *module.split(".")).with_suffix(".py")


def hot_extensions() -> list[Extension]:
    present = [module for module in HOT_MODULES if source_of(module).exists()]
    if os.environ.get("POLYBUS_PURE") == "1" or not present:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    extensions = [Extension(m, [str(source_of(m))], extra_compile_args=["-O2"]) for m in present]
    built: list[Extension] = cythonize(
        extensions,
        build_dir="build/cython",
        language_level=3,
        quiet=True,
        # The annotations speak to mypy (`int` there is no C type); the C types are in the `.pxd`.
        compiler_directives={"annotation_typing": False},
    )
    return built


class AllOrNone(build_ext):  # type: ignore[misc]  # setuptools has no types of its own
    """A failing compiler is reported instead of ending the build, and what it made before is left out too.

    Compiled modules take each other's objects apart: one of them beside the plain Python of another is no package.
    """

    extensions: list[Extension]

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except (BaseError, CCompilerError) as exc:
            self.warn(f"all modules stay plain Python: {exc}")
            for each in self.extensions:
                Path(self.get_ext_fullpath(each.name)).unlink(missing_ok=True)
            self.extensions = []


setup(ext_modules=hot_extensions(), cmdclass={"build_ext": AllOrNone})

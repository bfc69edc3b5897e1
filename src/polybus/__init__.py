"""Polybus: one message bus that speaks the wires of five.

Importing the package stays cheap: the SDK is loaded when `connect` is first asked for.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader

from polybus._version import __version__

TYPE_CHECKING = False  # as typing's, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence

    from polybus.client import connect, connect_sync

__all__ = ["__version__", "connect", "connect_sync"]


class _SourceFinder:
    """Finds the `.py` of a polybus module even where a compiled one lies beside it."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        if path is None or not fullname.startswith("polybus."):
            return None
        specs = (FileFinder(p, (SourceFileLoader, [".py"])).find_spec(fullname) for p in path)
        return next((spec for spec in specs if spec is not None and spec.loader is not None), None)


if os.environ.get("POLYBUS_PURE") == "1":
    # Before any submodule is imported: one compiled module loaded earlier would stay.
    sys.meta_path.insert(0, _SourceFinder)


def __getattr__(name: str) -> object:
    if name in __all__:
        from polybus import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The version, alone in a file so that the build reads it without importing the package."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0.dev0"

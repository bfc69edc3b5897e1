"""The captured messages and exchanges of the real daemons and clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "rmb.json").read_text(encoding="utf-8")
)
SIGNATURES: list[dict[str, Any]] = VECTORS["signatures"]["messages"]

"""Ctrl-C while modules load: there is nothing to clean up yet, so the program just ends.

An exception in the midst of an import would show a traceback, or get lost where Python calls back. Invariant: a process
that was started to ignore Ctrl-C goes on ignoring it.
"""

from __future__ import annotations

import os
import signal
from types import TracebackType
from typing import Final

INTERRUPTED: Final = 130  # as a shell says it of a program that Ctrl-C ended


class Loading:
    """Lasts while modules load."""

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)

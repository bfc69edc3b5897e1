"""The program `polybus`: one file per verb group.

Invariant: a verb writes results to stdout and everything else to stderr, and ends with one of the
exit codes listed in `polybus.cli.main`.
"""

from __future__ import annotations

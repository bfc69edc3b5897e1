"""The program `polybus`, also run by `python -m polybus`.

Invariant: from here on Ctrl-C never ends in a traceback; so nothing is imported before `Loading` watches over it.
"""

from __future__ import annotations

from polybus.cli.loading import Loading


def main() -> None:
    """Run the program named on the command line and exit."""
    with Loading():
        from polybus.cli.main import main as run
    run()


def t2() -> None:
    """Run the program `t2` of the distribution polybus-t2."""
    with Loading():
        from polybus.cli.t2 import main as run
    run()


if __name__ == "__main__":
    main()

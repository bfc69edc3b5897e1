"""The bus for plain programs: `python examples/without_event_loop.py [URL]`."""

from __future__ import annotations

import sys

import polybus


def main(url: str | None = None) -> None:
    with polybus.connect_sync(url) as bus:

        @bus.serve("greet")
        def greet(name: str) -> str:
            return f"hello {name}"

        print(bus.call("greet", "ann", type=str))
        offset = bus.produce("log", {"greeted": "ann"}, create=True)
        print("written at offset", offset)
        for record in bus.fetch("log", offset):
            print(record.payload.decode())


if __name__ == "__main__":
    main(*sys.argv[1:])

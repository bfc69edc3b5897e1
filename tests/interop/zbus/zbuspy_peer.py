"""The published Python client (zbuspy 0.8.4) at work: `zbuspy_peer.py FOLDER ADDRESS`, in a process of its own.

It was written for Python 3.8 and before: `json.loads` took an `encoding` then, and ignored it, and `inspect` had a
`getargspec`. Writes `ok` when all it expects came true.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from typing import Any

_loads = json.loads


def loads(text: Any, encoding: str = "", **options: Any) -> Any:
    return _loads(text, **options)


class Calc:
    def plus(self, a: int, b: int) -> int:
        return a + b


def main(address: str) -> None:
    setattr(json, "loads", loads)  # noqa: B010
    setattr(inspect, "getargspec", inspect.getfullargspec)  # noqa: B010
    import zbus  # type: ignore[import-not-found]

    broker = zbus.Broker(address)
    producer = zbus.Producer(broker)
    producer.declare("ZbusPy")
    time.sleep(0.5)
    got: list[Any] = []
    done = threading.Event()

    def handle(message: Any, client: Any) -> None:
        got.append(message.body)
        if len(got) == 20:
            done.set()

    zbus.Consumer(broker, "ZbusPy", handle).start()
    for number in range(20):
        message = zbus.Message()
        message.topic = "ZbusPy"
        message.body = f"m{number}"
        answer = producer.publish(message)
        assert answer.status == 200, answer
    assert done.wait(20), got
    assert got == [f"m{number}" for number in range(20)], got

    missing = zbus.Message()
    missing.topic = "NoSuchTopic"
    client = zbus.MqClient(address)
    answer = client.produce(missing)
    assert answer.status == 404, answer
    assert client.query("ZbusPy")["topicName"] == "ZbusPy"

    processor = zbus.RpcProcessor(Calc())
    control = zbus.Message()
    control.topic = "ZbusPyRpc"
    control.topic_mask = 2
    producer.declare(control)
    zbus.Consumer(broker, control, processor).start()
    time.sleep(1)
    rpc = zbus.RpcInvoker(broker, "ZbusPyRpc")
    assert rpc.plus(1, 2) == 3
    # Its own processor cannot send an exception (it is no JSON), so the error comes from our service.
    raised = ""
    try:
        zbus.RpcInvoker(broker, "PyCalc").boom("x")
    except Exception as exc:
        raised = str(exc)
    assert "boom-x" in raised, raised
    sys.stdout.write("ok\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    try:
        main(sys.argv[2])
        code = 0
    except BaseException as exc:
        sys.stderr.write(f"failed: {exc!r}\n")
        code = 1
    # Its threads never end.
    os._exit(code)

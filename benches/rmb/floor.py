"""The floor: what a signed round trip costs without any bus.

    python benches/rmb/floor.py REDIS_A REDIS_B IN_FLIGHT SECONDS KEY_TYPE

The very Redis commands of a round trip, each step of a batch in one pipeline, two signatures and two verifications.
Prints round trips and seconds as JSON. The invariant: a step begins when the step before it has been answered, as the
parts of a bus cannot know more either.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import uvloop

from polybus.protocols.rmb.resp import Command, RedisUrl, connect
from polybus.protocols.rmb.signature import Signer, parse_signature, verify

TEXT = b'{"ver":1,"uid":"0b5d6c5e-7a8f-4f6d-9a53-8f7d0d1e2f3a","cmd":"bench.echo","exp":60,"try":2,'
TEXT += b'"dat":"aGVsbG8gd29ybGQ=","tag":null,"src":1,"dst":[2],"ret":"bench.ret","shm":"",'
TEXT += b'"now":1794796103,"err":"","sig":"' + b"73" * 65 + b'"}'


async def run(port_a: int, port_b: int, in_flight: int, seconds: float, key_type: str) -> None:
    a = await connect(RedisUrl("127.0.0.1", port_a))
    b = await connect(RedisUrl("127.0.0.1", port_b))
    signer = Signer("sr25519" if key_type == "sr25519" else "ed25519", b"\1" * 32)
    n = in_flight
    mark = f"floor.{time.time_ns()}"
    digest = hashlib.md5(TEXT, usedforsecurity=False).digest()
    fields = [f"{mark}.{i}.2" for i in range(n)]

    def push(queue: str) -> list[Command]:
        return [("LPUSH", f"{mark}.{queue}", TEXT)] * n

    def pop(queue: str) -> list[Command]:
        return [("RPOP", f"{mark}.{queue}", n)]

    store: list[Command] = []
    for field in fields:
        store += [("HSET", f"{mark}.pending", field, TEXT), ("SETEX", f"{mark}.{field}", 60, TEXT)]
        store.append(("LPUSH", f"{mark}.forward", field))
    drop: list[Command] = [("HDEL", f"{mark}.pending", field) for field in fields]

    def sign_and_verify() -> None:
        for _ in range(n):
            signature = parse_signature(signer.sign(digest))
            assert verify(signature, digest, signer.public_key) == ""

    count = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        await a.run(*push("local"))
        await a.run(*pop("local"))
        await a.run(*store)
        await a.run(*pop("forward"))
        sign_and_verify()
        await b.run(*push("cmd"))
        await b.run(*pop("cmd"))
        await b.run(*push("reply"))
        await b.run(*pop("reply"))
        sign_and_verify()
        await a.run(*push("ret"), *drop)
        await a.run(*pop("ret"))
        count += n
    print(json.dumps({"count": count, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    uvloop.run(
        run(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    )

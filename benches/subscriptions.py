"""Prints what a publication costs among 100,000 subscriptions, a fifth of them with wildcards.

Run with `python benches/subscriptions.py [SUBSCRIPTIONS]`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import partial

from polybus.core.subscriptions import PATTERNS, Rules, Subscriptions
from polybus.protocols.t2.topics import UPSTREAM


def filled(rules: Rules, count: int) -> tuple[Subscriptions[int], list[str]]:
    """An index in which every topic of the returned list has ten matches."""
    rng = random.Random(7)
    index: Subscriptions[int] = Subscriptions(rules)
    topics = []
    for n in range(count // 10):
        room, user = f"room{n % 997}", f"user{n}"
        topic = f"{room}/{user}/said"
        topics.append(topic)
        for k in range(8):
            index.add(topic, n * 10 + k)
        index.add(f"{room}/{user}/*", n * 10 + 8)
        index.add(rng.choice([f"{room}/*/{user}", f"*/{user}/said", f"**/{user}/said"]), n * 10 + 9)
    return index, topics


def microseconds(work: Callable[[], object], times: int) -> float:
    begin = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begin) / times * 1e6


def report(name: str, rules: Rules, count: int) -> None:
    begin = time.process_time()
    index, topics = filled(rules, count)
    built = time.process_time() - begin
    rng = random.Random(8)
    sample = rng.sample(topics, 1000)
    print(f"{name}: {len(index)} subscriptions, {built / len(index) * 1e6:.1f} us each to add")
    matched = sum(len(index.matching(topic)) for topic in sample) / len(sample)

    stream = iter(sample * 1000)
    print(
        f"  topic seen before      {microseconds(lambda: index.matching(next(stream)), 50_000):8.2f} us"
        f"   ({matched:.1f} recipients)"
    )

    def right_after_a_subscribe() -> None:
        index.add("probe/*", -1)
        index.matching(next(stream))
        index.remove("probe/*", -1)

    print(
        f"  right after a change   {microseconds(right_after_a_subscribe, 10_000):8.2f} us"
        "   (with the subscribe and the unsubscribe)"
    )
    for topic in ("room5/**", "**", "**/user77", "*/**/*/**/*/**/said"):
        index.add("probe/*", -1)
        cost = microseconds(partial(index.matching, topic), 1)
        reached = len(index.matching(topic))
        print(f"  publishing {topic:20}{cost:10.0f} us   ({reached} recipients)")
        index.remove("probe/*", -1)


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    report("upstream rules", UPSTREAM, size)
    report("documented rules", PATTERNS, size)

"""Groups against their model: any order of what members, time, operators and power cuts can do."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from polybus.core import backlog
from polybus.core.engine import Append, Engine, TopicOptions
from polybus.core.group_options import BEGINNING, END, GroupOptions, Start
from polybus.core.member import Member
from polybus.core.topics import Topics
from polybus.model.clock import ManualClock
from polybus.model.record import NewRecord
from polybus.storage.engine import EmbeddedEngine
from tests.core.durable import BARRIER, Consumer, read_all
from tests.core.group_model import Log, ModelGroup, Rules
from tests.core.memory_engine import MemoryEngine

NAMES = st.sampled_from(["g", "h"])
WHO = st.sampled_from(["m1", "m2", "m3"])
TAGS = st.sampled_from(["a", "b", "c"])
OFFSETS = st.integers(0, 30)
OPTIONS = st.builds(
    GroupOptions,
    filter=st.sampled_from(["", "a", "a;b", "c"]),
    ack=st.sampled_from([True, True, False]),
    paused=st.sampled_from([False, False, True]),
    window=st.sampled_from([0, 1, 3]),
    group_window=st.sampled_from([0, 2]),
    ack_timeout_ms=st.sampled_from([0, 1500]),
    max_attempts=st.sampled_from([1, 2, 3]),
)


class GroupsMachine(RuleBasedStateMachine):
    """Every rule does the same to both and lets the real one come to rest; the invariant compares them."""

    loop: asyncio.AbstractEventLoop

    @initialize(cold=st.booleans(), ahead=st.sampled_from([1, 2, 128]), ack=st.booleans())
    def begin(self, cold: bool, ahead: int, ack: bool) -> None:
        self.loop = asyncio.new_event_loop()
        backlog.READ_RECORDS = ahead  # type: ignore[misc]
        self.clock = ManualClock()
        self.engine = self.new_engine(cold)
        self.model = Log()
        self.kept = Log()
        self.expected: dict[str, list[tuple[str, int, int]]] = {}
        self.waits: list[list[Any]] = []
        self.buried_before = 0
        self.boot()
        self.run(self.topics.declare("t"))
        self.run(self.topics.declare("t.dead"))
        options = GroupOptions(max_attempts=3, ack_timeout_ms=1500, ack=ack)
        self.declare(options, "g", BEGINNING)
        self.produce(list("abcabcab"))
        self.sync()

    def new_engine(self, cold: bool) -> Engine:
        self.memory = MemoryEngine(manual=True, cold=cold)
        return self.memory

    def boot(self) -> None:
        self.topics = Topics(self.engine, self.clock)
        self.members: dict[tuple[str, str], Member] = {}
        self.got: dict[str, list[tuple[str, int, int]]] = {}
        self.run(self.topics.start())

    def teardown(self) -> None:
        backlog.READ_RECORDS = 128  # type: ignore[misc]
        if hasattr(self, "loop"):
            self.cut()
            self.finish()
            self.loop.close()

    def finish(self) -> None:
        pass

    def cut(self) -> None:
        self.topics.groups._loop = None
        self.topics.groups._unsaved.clear()
        for task in self.topics.groups._tasks:
            task.cancel()
        self.rest()
        assert not self.topics.groups._tasks

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def rest(self) -> None:
        async def spin() -> None:
            quiet = 0
            before: object = None
            while quiet < 8:
                await asyncio.sleep(0)
                engine, groups = self.memory, self.topics.groups
                groups._save()  # the few milliseconds in which moves gather are over
                seen = (engine.reads, len(engine.moves), len(engine.commits), groups._scheduled)
                quiet = quiet + 1 if seen == before else 0
                before = seen

        self.run(spin())

    def pump(self) -> None:
        now = self.clock.monotonic()
        for name, group in self.model.groups.items():
            self.expected.setdefault(name, []).extend(group.pump(self.model, now))

    def settled(self) -> None:
        self.rest()
        self.pump()

    def make_durable(self) -> None:
        self.settled()
        self.drain()
        self.model.sync()
        self.pump()
        self.drain()
        self.kept = self.model.snapshot()

    def drain(self) -> None:
        while self.memory.sync():
            # Whatever moment the power goes: a dead letter is there exactly when its record is done.
            image = self.image()
            states = {state.name: state for state in image.groups("t")}
            letters = self.letters(image)
            for name, offset, _ in letters[self.buried_before :]:
                assert offset < states[name].floor or offset in states[name].done
            self.buried_before = len(letters)
            self.rest()

    def image(self) -> Engine:
        """What a power cut would leave."""
        return self.memory.crash()

    def letters(self, engine: Engine) -> list[tuple[str, int, int]]:
        names = ("dead-group", "dead-offset", "dead-attempts")
        found = self.run(read_all(engine, "t.dead"))
        texts = [[record.headers[name] for name in names] for record in found]
        return [(group, int(offset), int(attempts)) for group, offset, attempts in texts]

    def administer(self, work: Coroutine[Any, Any, Any]) -> None:
        self.run(work)
        self.rest()

    # -- members --------------------------------------------------------------------------------

    @rule(who=WHO, count=st.integers(1, 4))
    def credit_first(self, who: str, count: int) -> None:
        self.credit("g", who, count)

    @rule(name=NAMES, who=WHO, count=st.integers(1, 4))
    def credit(self, name: str, who: str, count: int) -> None:
        if name not in self.model.groups:
            return
        group = self.model.groups[name]
        if (name, who) not in self.members:
            got = self.got.setdefault(name, [])
            consumer = Consumer()
            consumer.react = lambda d: got.append((who, d.record.offset, d.attempt))
            self.members[name, who] = self.topics.groups.join(consumer, "t", name)
            group.credit[who] = 0
        self.members[name, who].credit(count)
        group.give_credit(who, count)
        self.settled()

    def some(self, data: st.DataObject) -> tuple[ModelGroup, Member, str]:
        name, who = data.draw(st.sampled_from(sorted(self.members)))
        return self.model.groups[name], self.members[name, who], who

    def mine(self, data: st.DataObject, group: ModelGroup, who: str) -> int:
        held = group.held(who)
        return data.draw(st.sampled_from(held) if held else OFFSETS)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), stray=OFFSETS, waits=st.booleans())
    def ack(self, data: st.DataObject, stray: int, waits: bool) -> None:
        group, member, who = self.some(data)
        held = data.draw(st.permutations(group.held(who)))
        offsets = [*held[: data.draw(st.integers(1, 3))], stray]
        heard: list[Any] = []
        count = member.ack(offsets, heard.append if waits else None)
        assert count == group.finish(who, offsets)
        if waits:
            self.waits.append(heard)
        self.settled()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 0.0, 0.5, 3.0]))
    def nack(self, data: st.DataObject, delay: float) -> None:
        group, member, who = self.some(data)
        offset = self.mine(data, group, who)
        holds = offset in group.held(who)
        assert member.nack(offset, delay) is holds
        if holds:
            group.release(offset, self.clock.monotonic() + delay if delay else 0.0)
        self.settled()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        group, member, who = self.some(data)
        del self.members[member.group.name, who]
        self.topics.groups.left(member.endpoint)
        group.leave(who)
        self.settled()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        group, member, who = self.some(data)
        member.recall()
        group.recall(who)
        self.settled()

    # -- the rest of the world ------------------------------------------------------------------

    @rule(tags=st.lists(TAGS, min_size=1, max_size=5))
    def produce(self, tags: list[str]) -> None:
        records = [NewRecord(tag.encode(), tag=tag) for tag in tags]

        async def work() -> None:
            self.topics.produce("t", records, lambda first, error: None)

        self.run(work())
        self.model.unsynced += tags
        self.settled()

    @rule()
    def sync(self) -> None:
        self.make_durable()
        assert all(heard == [None] for heard in self.waits)
        self.waits = []

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0]))
    def time(self, seconds: float) -> None:
        self.topics.tick(self.clock.advance(seconds))
        for group in self.model.groups.values():
            group.expire(self.clock.monotonic())
        self.settled()

    @rule(data=st.data(), name=NAMES)
    def operate(self, data: st.DataObject, name: str) -> None:
        verbs = ["edit", "edit", "reset", "trim", "remove", "crash", "crash", "restart"]
        verb = data.draw(st.sampled_from(verbs))
        known = name in self.model.groups
        if verb == "edit" or not known:
            starts = [BEGINNING, END, *([Start("copy", group="g")] * ("g" in self.model.groups))]
            self.declare(data.draw(OPTIONS), name, data.draw(st.sampled_from(starts)))
        elif verb == "reset":
            self.reset(name, data.draw(st.sampled_from([BEGINNING, END])))
        elif verb == "trim":
            self.retention(data.draw(st.integers(0, 5)))
        elif verb == "remove":
            self.remove(name)
        else:
            self.crash(gently=verb == "restart")

    def declare(self, options: GroupOptions, name: str, start: Start) -> None:
        groups = self.topics.groups
        self.make_durable()
        rules = Rules(
            frozenset(options.filter.split(";")) if options.filter else None,
            options.ack,
            options.paused,
            options.window or 99,
            options.group_window or 99,
            options.ack_timeout_ms / 1000,
            options.max_attempts,
        )
        known = self.model.groups.get(name)
        if known is None:
            self.model.groups[name] = ModelGroup(rules, *self.position(start))
        else:
            known.passed(groups.get("t", name).floor(), self.model)
            known.rules = rules
            known.bury_spent()
            for who in known.credit:
                known.enqueue(who)
        self.administer(groups.declare("t", name, options, start))
        self.pump()
        self.make_durable()

    def position(self, start: Start) -> tuple[int, set[int]]:
        if start.at == "copy":
            group = self.model.groups["g"]
            group.passed(self.topics.groups.get("t", "g").floor(), self.model)
            return group.floor, set(group.done)
        return (self.model.first if start.at == "beginning" else len(self.model.tags)), set()

    def reset(self, name: str, start: Start) -> None:
        self.make_durable()
        old = self.model.groups[name]
        floor, done = self.position(start)
        new = ModelGroup(old.rules, floor, done)
        new.credit, new.recalled, new.waiting = old.credit, old.recalled, old.waiting
        for who in new.credit:
            new.enqueue(who)
        self.model.groups[name] = new
        self.administer(self.topics.groups.reset("t", name, start))
        self.pump()
        self.make_durable()

    def retention(self, keep: int) -> None:
        self.make_durable()
        self.model.first = max(self.model.first, len(self.model.tags) - keep)
        self.run(self.engine.trim("t", self.model.first))
        self.time(1.0)
        self.make_durable()

    def remove(self, name: str) -> None:
        self.make_durable()
        self.administer(self.topics.groups.remove("t", name))
        del self.model.groups[name]
        self.got.pop(name, None)
        self.expected.pop(name, None)
        self.members = {key: member for key, member in self.members.items() if key[0] != name}
        self.kept = self.model.snapshot()

    def crash(self, gently: bool) -> None:
        if gently:
            self.make_durable()
            self.run(self.topics.stop())
        self.cut()
        self.waits = []
        self.reopen(gently)
        self.model = self.kept.snapshot()
        for group in self.model.groups.values():
            group.after_crash()
        self.expected = {}
        self.boot()
        for name, group in self.model.groups.items():
            group.passed(self.topics.groups.get("t", name).floor(), self.model)
        self.settled()

    def reopen(self, gently: bool) -> None:
        self.engine = self.memory = self.memory.crash()

    # -- agreement ------------------------------------------------------------------------------

    @invariant()
    def deliveries_agree(self) -> None:
        if not hasattr(self, "topics"):
            return
        for name in self.model.groups:
            assert self.got.get(name, []) == self.expected.get(name, [])

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "topics"):
            return
        end = len(self.model.tags)
        for name, model in self.model.groups.items():
            group = self.topics.groups.get("t", name)
            info, wanted = group.info(), model.undone(self.model)
            flight = {o: (f[0].endpoint, f[1]) for o, f in group.in_flight.items()}
            assert {o: n for o, (_, n) in flight.items()} == {
                o: model.tries[o] for o in model.flight
            }
            assert len(wanted) <= info.remaining + len(set(wanted) & model.buried)
            assert info.lag == end - info.floor
            assert all(offset >= info.floor for offset in wanted)
            assert info.floor >= model.floor

    @invariant()
    def what_is_durable_agrees(self) -> None:
        if not hasattr(self, "topics"):
            return
        image = self.image()
        states = {state.name: state for state in image.groups("t")}
        assert states.keys() == self.kept.groups.keys()
        for name, kept in self.kept.groups.items():
            state, wanted = states[name], kept.undone(self.kept)
            there = [o for o in wanted if o >= state.floor and o not in state.done]
            assert there == wanted
            tags = kept.rules.tags
            for offset in kept.done:
                if offset >= self.kept.first and (tags is None or self.kept.tags[offset] in tags):
                    assert offset < state.floor or offset in state.done
            assert {o: state.attempts.get(o, 0) for o in wanted} == {
                o: kept.tries.get(o, 0) for o in wanted
            }
        assert Counter(self.letters(image)) == Counter(self.kept.dead)


class EmbeddedMachine(GroupsMachine):
    """The same on the real engine, which commits when it likes: here every step waits until all is durable."""

    def new_engine(self, cold: bool) -> Engine:
        self.folder = Path(tempfile.mkdtemp(prefix="polybus-model-"))
        self.lives = 0
        return self.opened()

    def opened(self) -> EmbeddedEngine:
        self.engine = EmbeddedEngine(self.folder / str(self.lives), self.clock)
        self.run(self.engine.start())
        return self.engine

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def finish(self) -> None:
        self.run(self.engine.stop())

    def image(self) -> Engine:
        return self.engine

    def rest(self) -> None:
        async def settle() -> None:
            if BARRIER not in [topic.name for topic in self.engine.topics()]:
                await self.engine.declare(BARRIER, TopicOptions())
            for _ in range(3):
                await self.engine.commit([Append(BARRIER, [NewRecord(b"")])])
                await self.topics.groups.idle()

        self.run(settle())

    def settled(self) -> None:
        super().settled()
        self.model.sync()
        self.pump()
        self.rest()
        self.kept = self.model.snapshot()

    def drain(self) -> None:
        self.rest()

    def reopen(self, gently: bool) -> None:
        old = self.engine
        if not gently:
            # A copy of the folder is what the disk holds when the power goes.
            shutil.copytree(self.folder / str(self.lives), self.folder / str(self.lives + 1))
            self.lives += 1
        self.run(old.stop())
        self.opened()


def check(examples: int, machine: type[GroupsMachine] = GroupsMachine) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(120)
def test_groups_agree_with_their_model():
    check(60)


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_groups_agree_with_their_model_over_many_runs():
    check(500)


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_groups_on_the_real_engine_agree_with_their_model():
    check(40, EmbeddedMachine)

"""Runs all arms over the same prompts in turn, so that no drift of the machine favours one.

Whoever can't run, or fails, is left out with the reason. Prints nothing.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from slipstream.bench.peers.arms import Arm
from slipstream.bench.peers.outfit import NotHere, Outfit, seat_settings
from slipstream.bench.peers.plan import WARMUP_TOKENS, Level, PeersPlan, PromptIds, rotated
from slipstream.bench.peers.seats import Seat
from slipstream.bench.peers.wire import Answer
from slipstream.core.errors import SlipstreamError

Advance = Callable[[str], None]
"""Told the name of an arm whenever it has answered a batch."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch of requests, answered by one arm.

    `others_cpu_s` is the processor time meanwhile of all seats that ought to be idle.
    """

    arm: str
    concurrency: int
    batch: int
    """Which one of its level: every arm has the same."""
    prompts: tuple[PromptIds, ...]
    wall_s: float
    answers: tuple[Answer, ...]
    others_cpu_s: float

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(answer.num_tokens for answer in self.answers)


@dataclass(slots=True)
class Record:
    """All that has been seen so far: a run that is interrupted leaves what it has."""

    samples: list[Sample] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why, by arm; names as `named`."""
    seats: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the seats of arms said of themselves, and the memory they took; names as `named`."""
    is_whole: bool = False
    """Whether everything was measured that could be."""

    def skip(self, arm: str, concurrency: int, reason: str) -> None:
        """Note why an arm is left out; once where it is the same at every concurrency."""
        if self.skipped.get(arm) != reason:
            self.skipped[named(arm, concurrency)] = reason


def named(arm: str, concurrency: int) -> str:
    """An arm at one level, in words."""
    return arm if concurrency == 1 else f"{arm} at concurrency {concurrency}"


@dataclass(frozen=True, slots=True)
class Room:
    """Everybody who can answer at one level."""

    level: Level
    seats: dict[str, Seat]
    """By arm; arms of ours may share one."""

    def arms(self) -> list[Arm]:
        """Those who have a seat."""
        return [arm for arm in self.level.arms if arm.name in self.seats]

    def cpu_s(self, *, but: Seat) -> float:
        """Processor seconds so far of all seats but one."""
        others = {id(seat): seat for seat in self.seats.values() if seat is not but}
        return sum(seat.cpu_s() for seat in others.values())


def run_peers(
    plan: PeersPlan,
    outfit: Outfit,
    record: Record,
    *,
    advance: Advance,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Measure all levels, one after the other, into `record`. Raises only what ends everything."""
    for level in plan.levels:
        with _room(level, outfit, record) as room:
            for _ in range(plan.warmup):
                _go_through(plan, room, record, number=None, advance=advance, sleep=sleep)
            for number in range(len(level.batches)):
                _go_through(plan, room, record, number=number, advance=advance, sleep=sleep)
            _note_memory(room, record)
    record.is_whole = True


def _go_through(
    plan: PeersPlan,
    room: Room,
    record: Record,
    *,
    number: int | None,
    advance: Advance,
    sleep: Callable[[float], object],
) -> None:
    """Have every arm answer one batch; the first one, shortly and unmeasured, for None."""
    prompts = room.level.batches[number or 0]
    most = plan.max_new_tokens if number is not None else min(plan.max_new_tokens, WARMUP_TOKENS)
    if not room.arms():
        return
    for arm in rotated(room.arms(), number or 0):
        sleep(plan.settle_s)
        try:
            sample = _sample(room, arm, number or 0, prompts, most)
        except SlipstreamError as error:
            record.skip(arm.name, room.level.concurrency, f"it failed: {error}")
            del room.seats[arm.name]
        else:
            if number is not None:
                record.samples.append(sample)
        advance(arm.name)


def _sample(
    room: Room, arm: Arm, number: int, prompts: Sequence[PromptIds], max_new_tokens: int
) -> Sample:
    seat = room.seats[arm.name]
    before_s = room.cpu_s(but=seat)
    reply = seat.ask(arm.name, [prompt.token_ids for prompt in prompts], max_new_tokens)
    others_s = room.cpu_s(but=seat) - before_s
    concurrency = room.level.concurrency
    return Sample(
        arm.name, concurrency, number, tuple(prompts), reply.wall_s, reply.answers, others_s
    )


@contextmanager
def _room(level: Level, outfit: Outfit, record: Record) -> Iterator[Room]:
    """Start a seat for everybody who can have one; all end with the context."""
    groups: dict[str, tuple[dict[str, Any], list[Arm]]] = {}
    for arm in level.arms:
        try:
            settings = seat_settings(arm, outfit, is_concurrent=level.concurrency > 1)
        except NotHere as error:
            record.skip(arm.name, level.concurrency, str(error))
            continue
        key = json.dumps(settings) if arm.is_ours else arm.name
        groups.setdefault(key, (dict(settings), []))[1].append(arm)
    with ExitStack() as opened:
        seats: dict[str, Seat] = {}
        for settings, arms in groups.values():
            seats |= _seated(opened, settings, arms, level, record)
        yield Room(level, seats)


def _seated(
    opened: ExitStack, settings: dict[str, Any], arms: list[Arm], level: Level, record: Record
) -> dict[str, Seat]:
    methods = {arm.name: arm.method.name for arm in arms if arm.method is not None}
    try:
        seat = Seat(settings | {"methods": methods})
    except SlipstreamError as error:
        for arm in arms:
            record.skip(arm.name, level.concurrency, f"it did not start: {error}")
        return {}
    opened.callback(seat.close)
    seats: dict[str, Seat] = {}
    for arm in arms:
        try:
            seat.load(arm.name)
        except SlipstreamError as error:
            record.skip(arm.name, level.concurrency, str(error))
        else:
            seats[arm.name] = seat
    return seats


def _note_memory(room: Room, record: Record) -> None:
    for arm in room.arms():
        seat = room.seats[arm.name]
        shared = [name for name, other in room.seats.items() if other is seat]
        record.seats[named(arm.name, room.level.concurrency)] = {
            "peak_bytes": seat.peak_bytes(),
            "num_processes": len(seat.facts.pids),
            "arms": shared,
            "versions": dict(seat.facts.versions),
            "settings": dict(seat.facts.settings),
        }

"""Real services of several sizes beside their simulation. Prints nothing.

What calls cost beside the engines is learnt from one user with one draft and one target; all else
is predicted before it is measured.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from slipstream.bench.services import processor_s
from slipstream.bench.timed.crowd import Seen, ask_all
from slipstream.bench.timed.fleet import Engines, engines, routed
from slipstream.bench.timed.script import Script
from slipstream.core.errors import InvalidRequest
from slipstream.sizing.outcome import tokens_per_s
from slipstream.sizing.recording import Devices, RecordedRequest, Recording, Round, write_recording
from slipstream.sizing.simulator import Counts, Crowd, Fleet, Simulated, simulate

LEARNING = 4
"""Requests that calls are learnt from."""
_NOTHING_S = 1e-6


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """Sizes to run, and how hard: users and requests of each for every target."""

    drafts: tuple[int, ...] = (1, 2, 3)
    targets: tuple[int, ...] = (1, 2)
    users_per_target: int = 6
    requests_per_user: int = 4

    def __post_init__(self) -> None:
        for name, least in (("drafts", 0), ("targets", 1)):
            counts = getattr(self, name)
            if not counts or min(counts) < least:
                raise InvalidRequest(f"{name} are {counts}, but must be {least} or more")
        if self.users_per_target < 1 or self.requests_per_user < 1:
            raise InvalidRequest("a target needs a user, and a user a request")

    def fleets(self) -> list[Fleet]:
        """What is run, in order."""
        return [Fleet(drafts, targets) for targets in self.targets for drafts in self.drafts]

    def crowd(self, fleet: Fleet) -> Crowd:
        """Who asks it."""
        users = self.users_per_target * fleet.targets
        return Crowd(users * self.requests_per_user, users)


@dataclass(frozen=True, slots=True)
class Point:
    """One size: what came of it, and what was to be expected."""

    simulated: Simulated
    users: int
    counts: Counts
    num_identical: int
    tokens_per_s: float
    busy_processors: float

    @property
    def error(self) -> float:
        """By how much the prediction is too high, as a part of what was measured."""
        return self.simulated.tokens_per_s / self.tokens_per_s - 1

    def values(self) -> dict[str, Any]:
        """For a file."""
        return {
            "drafts": self.simulated.fleet.drafts,
            "targets": self.simulated.fleet.targets,
            "users": self.users,
            "tokens_per_s": self.tokens_per_s,
            "simulated_tokens_per_s": self.simulated.tokens_per_s,
            "error": self.error,
            "counts": asdict(self.counts),
            "simulated_counts": asdict(self.simulated.counts),
            "num_identical": self.num_identical,
            "busy_processors": self.busy_processors,
        }


def as_chains(recording: Recording) -> Recording:
    """The same rounds without the leaves beside their longest path: what scripts can follow."""
    return replace(
        recording,
        requests=tuple(
            RecordedRequest(
                request.num_prompt_tokens,
                tuple(Round(at.depth, at.depth, at.accepted) for at in request.rounds),
            )
            for request in recording.requests
        ),
    )


async def run_scaling(
    plan: ScalingPlan, recording: Recording, path: Path, *, advance: Callable[[str], None]
) -> tuple[Devices, list[Point]]:
    """All sizes, and the devices with what calls cost here. `path` is for a file of the run."""
    recording = as_chains(recording)
    write_recording(path, recording)
    most = max(plan.targets), max(*plan.drafts, 1)
    async with engines(path, targets=most[0], drafts=most[1]) as running:
        advance("engines")
        devices = await learn_calls(running, recording)
        learnt = replace(recording, devices=devices)
        advance("calls")
        points = []
        for fleet in plan.fleets():
            points.append(await run_point(running, learnt, fleet, plan.crowd(fleet)))
            advance(f"{fleet.drafts}:{fleet.targets}")
    return devices, points


async def learn_calls(running: Engines, recording: Recording) -> Devices:
    """The recorded devices with what calls and routers cost on this machine."""
    script = Script(recording)
    few = replace(recording, requests=recording.requests[:LEARNING])
    async with routed(running, targets=1, drafts=1, users=1) as (client, _):
        await ask_all(client, script, iter([0]), users=1, is_drafted=True)
        seen = await ask_all(
            client, script, iter(range(len(few.requests))), users=1, is_drafted=True
        )
    return _with_calls(few, seen)


def _with_calls(recording: Recording, seen: Seen) -> Devices:
    """Whatever is left of the time when the devices' own is taken off: calls, and the router."""
    free = replace(recording, devices=replace(recording.devices, wire_s=_NOTHING_S, router_s=0.0))
    count = len(recording.requests)
    device_s = simulate(free, Fleet(1, 1), Crowd(count)).seconds
    each = [at.timings for at in seen.stats]
    router_s = sum(at.decode_s - at.draft_s - at.verify_s for at in each)
    whole_s = sum(at.prefill_s + at.decode_s for at in each)
    rounds = [at for request in recording.requests for at in request.rounds]
    calls = count + sum(2 if at.depth else 1 for at in rounds)
    return replace(
        recording.devices,
        wire_s=max((whole_s - router_s - device_s) / calls, _NOTHING_S),
        router_s=max(router_s, 0.0) / len(rounds),
    )


async def run_point(running: Engines, recording: Recording, fleet: Fleet, crowd: Crowd) -> Point:
    """One size, after everybody has asked once in vain; simulated first."""
    expected = simulate(recording, fleet, crowd)
    script, is_drafted = Script(recording), fleet.drafts > 0
    size = {"targets": fleet.targets, "drafts": fleet.drafts}
    numbers = cycle(range(len(recording.requests)))
    async with routed(running, **size, users=crowd.users) as (client, router):
        warm_up = islice(numbers, crowd.users)
        await ask_all(client, script, warm_up, users=crowd.users, is_drafted=is_drafted)
        numbers = cycle(range(len(recording.requests)))
        cpu_s = running.cpu_s() + processor_s(router.pid)
        began = time.perf_counter()
        asked = islice(numbers, crowd.num_requests)
        seen = await ask_all(client, script, asked, users=crowd.users, is_drafted=is_drafted)
        seconds = time.perf_counter() - began
        cpu_s = running.cpu_s() + processor_s(router.pid) - cpu_s
    return Point(
        expected,
        crowd.users,
        seen.counts(),
        seen.num_identical,
        tokens_per_s(seen.answers),
        cpu_s / seconds,
    )

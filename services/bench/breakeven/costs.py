"""What steps of the target, passes of the draft and calls cost, timed through their ports.

Sizes are timed in turn, round after round, so that a drift of the machine hits all of them alike.
Knows no model; the steps say themselves what they took.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from statistics import median

from slipstream.bench.breakeven.stand import Stand
from slipstream.core.errors import InvalidRequest
from slipstream.core.timing import Clock
from slipstream.core.tree import TokenTree
from slipstream.core.types import Delta, Plan, Proposal, Session
from slipstream.sizing.recording import Devices
from slipstream.target.works import Step

_WARMUP = 2
_LEAST_S = 1e-6
"""Of a call, or a drafted token: a device that takes no time at all is none."""

Size = tuple[int, int]
"""Rows of each session, and sessions."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Seconds that a plain round takes beside its step: at the target's port, and in the loop."""

    wire_s: float
    router_s: float


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Seconds of a drafted token of one session, and what each further session adds."""

    level_s: float
    level_row_s: float


async def time_steps(
    stand: Stand, sizes: Iterable[Size], rounds: int, *, longest: int
) -> dict[Size, float]:
    """Median seconds of a step of each size."""
    sizes = tuple(sizes)
    seconds: dict[Size, list[float]] = {size: [] for size in sizes}
    async with _seated(stand, max(count for _, count in sizes), longest) as seats:
        for number, (rows, count) in product(range(_WARMUP + rounds), sizes):
            steps = await seats.verify(seats.all[:count], rows)
            if number >= _WARMUP:
                seconds[rows, count] += _matching(steps, (rows, count))
    if missing := [size for size, of in seconds.items() if not of]:
        raise InvalidRequest(
            f"no step had {missing[0][0]} rows of each of {missing[0][1]} sessions: the target"
            " takes fewer at once"
        )
    return {size: median(of) for size, of in seconds.items()}


async def time_draft(
    stand: Stand, *, depth: int, sessions: int, rounds: int, clock: Clock
) -> DraftCost:
    """What the stand's draft takes for chains of `depth`, alone and with so many sessions."""
    assert stand.real is not None, "only asked where there is one"
    seconds: dict[int, list[float]] = {1: [], sessions: []}
    longest = 2 * (rounds + _WARMUP) + depth + 2
    async with _seated(stand, sessions, longest) as seats:
        for number, count in product(range(_WARMUP + rounds), seconds):
            await seats.verify(seats.all[:count], 1)
            seats.go_on()  # a draft has something to read in every round
            began = clock()
            await seats.propose(seats.all[:count], depth)
            if number >= _WARMUP:
                seconds[count].append(clock() - began)
    alone_s, all_s = (median(seconds[count]) / depth for count in (1, sessions))
    more_s = max(all_s - alone_s, 0.0) / (sessions - 1) if sessions > 1 else 0.0
    return DraftCost(max(alone_s, _LEAST_S), more_s)


def devices(steps: Mapping[Size, float], calls: Calls, draft: DraftCost) -> Devices:
    """All of it, as sizing takes it. What sessions add is fitted by least squares."""
    verify = tuple(
        sorted((rows, seconds) for (rows, count), seconds in steps.items() if count == 1)
    )
    curve = Devices(verify, draft.level_s).curve()
    more = [
        (count - 1, seconds - curve.seconds(rows * count))
        for (rows, count), seconds in steps.items()
        if count > 1
    ]
    products = sum(others * seconds for others, seconds in more)
    session_s = max(products / sum(others**2 for others, _ in more), 0.0) if more else 0.0
    return Devices(
        verify,
        draft.level_s,
        draft.level_row_s,
        session_s,
        wire_s=max(calls.wire_s, _LEAST_S),
        router_s=max(calls.router_s, 0.0),
    )


def _matching(steps: Sequence[Step], size: Size) -> list[float]:
    """Of those that were as large as asked for: a target may have cut the others up."""
    rows, count = size
    return [
        step.seconds
        for step in steps
        if (step.num_rows, step.num_sessions) == (rows * count, count)
    ]


@asynccontextmanager
async def _seated(stand: Stand, count: int, longest: int) -> AsyncGenerator["_Seats", None]:
    """So many sessions whose prompts have been read."""
    seats = _Seats(stand, count, longest)
    try:
        await seats.verify(seats.all, 1)
        yield seats
    finally:
        await seats.leave()


class _Seats:
    """Sessions that verify the same place as often as one likes, until they go on from it."""

    def __init__(self, stand: Stand, count: int, longest: int) -> None:
        self._stand = stand
        self.all = [
            _Seat(Session(f"cost-{number}", len(prompt), longest), list(prompt))
            for number, prompt in enumerate(stand.prompts_of(0, count))
        ]

    async def verify(self, seats: Sequence["_Seat"], rows: int) -> list[Step]:
        """A round of each at once, with a chain of `rows` - 1; the steps of it."""
        steps = self._stand.steps
        steps.clear()
        await asyncio.gather(*(self._verify(seat, rows) for seat in seats))
        return list(steps)

    async def propose(self, seats: Sequence["_Seat"], depth: int) -> None:
        """Ask the draft for a chain for each, and leave it at that."""
        assert self._stand.real is not None, "only asked where there is one"
        draft = self._stand.real.draft
        plan = Plan(depth, depth)
        await asyncio.gather(
            *(draft.propose(seat.session, seat.news(seat.told_draft), plan) for seat in seats)
        )
        for seat in seats:
            seat.told_draft = len(seat.tokens)

    def go_on(self) -> None:
        """Keep what the last rounds made final."""
        for seat in self.all:
            seat.tokens += seat.final
            seat.final = ()

    async def leave(self) -> None:
        for seat in self.all:
            if self._stand.real is not None:
                await self._stand.real.draft.release(seat.session.session_id)
            await self._stand.target.release(seat.session.session_id)

    async def _verify(self, seat: "_Seat", rows: int) -> None:
        chain = [seat.tokens[at % len(seat.tokens)] for at in range(rows - 1)]
        news = seat.news(seat.told_target)
        verdict = await self._stand.target.verify(
            seat.session, news, Proposal(TokenTree.chain(chain))
        )
        seat.told_target, seat.final = len(seat.tokens), verdict.tokens


@dataclass(slots=True)
class _Seat:
    session: Session
    tokens: list[int]
    final: tuple[int, ...] = ()
    told_target: int = 0
    told_draft: int = 0

    def news(self, told: int) -> Delta:
        return Delta.since(told, self.tokens)

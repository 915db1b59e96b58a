"""Cost of a round, embedded and distributed: both answer the same questions in turn."""

import asyncio
import os
import selectors
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from rich.table import Table

from slipstream.bench.figures import (
    ByName,
    fixed,
    number,
    position_text,
    quotient,
    sample_differences,
    sample_figures,
    table,
    table_of,
)
from slipstream.bench.harness import Ask, Sample, Samples, TurnPlan
from slipstream.client import Client
from slipstream.core.errors import InvalidRequest, check
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.results import Timings
from slipstream.core.stop_reasons import AHEAD
from slipstream.local.stack import Stack, StackPlan
from slipstream.options import items, option

T = TypeVar("T")

EMBEDDED = "embedded"
"""Baseline: both engines in one process."""
PARTS = {
    "draft_engine": "draft engine",
    "kv_wait": "draft waits for keys and values",
    "draft_service": "draft service, rest",
    "draft_wire": "wire to the draft",
    "target_engine": "target engine",
    "target_service": "target service, rest",
    "target_wire": "wire to the target",
    "serialisation": "serialisation",
    "rest": "loop, text and the rest of the router",
}
"""Parts of a round's time, and their labels."""


PLAIN = "plain"
FAR = {"draft": ("draft", "kv"), "all": ("draft", "kv", "target")}
"""Wires that are slow, by what is far: from the router to either, and to the target's keys."""
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class RoundsPlan(TurnPlan):
    """Plan of a comparison; forced rounds all draft, so that all parts of a round are seen."""

    mode: str = option("forced", "Speculation: forced, or auto.")
    overlap: bool = option(False, "Also measure with the option overlap.")
    kv: bool = option(
        False, "Also measure the stream of the target's keys and values, and rounds beside it."
    )
    rtt_ms: str = option("0", "Round-trip times of slow wires in milliseconds, as 0.2,5,20.")
    far: str = option("draft", "What is so far away: draft, or all: the target, too.")
    pin: bool = option(
        False, "One thread each; the target and the embedded engine on the first core, others not."
    )

    def __post_init__(self) -> None:
        TurnPlan.__post_init__(self)
        check(self.mode in ("forced", "auto"), "mode", self.mode, "forced or auto")
        check(self.far in FAR, "far", self.far, "draft or all")
        for rtt_ms in self.delays_ms():
            check(0 <= rtt_ms <= 1000, "rtt_ms", rtt_ms, "0 to 1000")

    def delays_ms(self) -> list[float]:
        """Return the round-trip times. Raises `InvalidRequest` for what is no number."""
        try:
            return [float(text) for text in items(self.rtt_ms)]
        except ValueError:
            raise InvalidRequest(f"rtt_ms is {self.rtt_ms!r}, but must be numbers") from None

    def asks(self, embedded: Client, routed: Client, services: "Services") -> dict[str, Ask]:
        """Return the functions that send questions, by name: to the engine in this process, and to
        the services for every distance, plain and with the draft."""
        speculations = {PLAIN: SpeculationOptions(mode=Mode.OFF)}
        speculations["distributed"] = drafting = SpeculationOptions(mode=Mode(self.mode))
        if self.overlap:
            speculations["overlap"] = replace(drafting, overlap=True)
        sampling = self.sampling.params()

        def ask(client: Client, speculation: SpeculationOptions, rtt_ms: float) -> Ask:
            def send(text: str, *, max_tokens: int) -> Any:
                services.set_distance(rtt_ms, is_local=client is embedded)
                return client.generate(
                    text, max_tokens=max_tokens, sampling=sampling, speculation=speculation
                )

            return send

        found = {EMBEDDED: ask(embedded, drafting, 0.0)}
        for rtt_ms in self.delays_ms():
            where = "" if self.rtt_ms == "0" else f" {rtt_ms:g} ms"
            for name, speculation in speculations.items():
                found[name + where] = ask(routed, speculation, rtt_ms)
        return found


class SlowWire:
    """TCP relay to an address, which holds all bytes back for `delay_s`, in order."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.to = self.address = ""
        """Address that it leads to, and its own, once it listens."""
        self._relays: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> "SlowWire":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = ":".join(map(str, self._server.sockets[0].getsockname()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, asyncio.sleep(0), return_exceptions=True)

    def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        relay = asyncio.create_task(self._relay(near, back))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with closing(back), suppress(OSError):  # either side is gone: its end is passed on
            far, there = await asyncio.open_connection(*self.to.rsplit(":", 1))
            await asyncio.gather(self._carry(near, there), self._carry(far, back))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        with closing(sink):
            while piece := await source.read(_PIECE):
                due = max(loop.time() + self.delay_s, due)
                loop.call_at(due, sink.write, piece)
            await asyncio.sleep(due - loop.time())


@dataclass(eq=False)
class Services:
    """Target, draft and router on this machine, with slow wires between them where `plan` has
    any; their logs are ignored, as what keeps one from starting is raised."""

    stack: StackPlan
    plan: RoundsPlan
    _wires: Mapping[str, SlowWire] = field(default_factory=dict)
    target: str = ""
    """Address of the target, without a slow wire, once it serves."""
    _cores: Sequence[int] = ()

    async def during(self, work: Callable[[str, "Services"], T]) -> T:
        """Return what `work` does with the router's address, in a thread."""
        async with AsyncExitStack() as wires:
            if self.plan.rtt_ms != "0":
                names = FAR[self.plan.far]
                self._wires = {name: await wires.enter_async_context(SlowWire()) for name in names}
                keys = ("--advertised-address", self._wires["kv"].address)
                target = (*self.stack.flags["target"], *keys)
                self.stack = replace(self.stack, flags={**self.stack.flags, "target": target})
            stack = Stack(self.stack, on_line=lambda name, line: None, reached=self._reached)
            try:
                address = await stack.start()
                self.target = stack.engines["target"]
                if self.plan.pin:
                    self._pin(stack.pids)
                return await asyncio.to_thread(work, address, self)
            finally:
                await stack.stop(hurry=True)

    def set_distance(self, rtt_ms: float, *, is_local: bool) -> None:
        """Set the round-trip time of what is far; the caller itself computes where `is_local`."""
        for wire in self._wires.values():
            wire.delay_s = rtt_ms / 2000
        if self._cores:
            _set_cores(os.getpid(), self._cores[:1] if is_local else self._cores[1:])

    def _reached(self, role: str, address: str) -> str:
        for name, wire in self._wires.items():
            if name == role or (name, role) == ("kv", "target"):
                wire.to = address
        return self._wires[role].address if role in self._wires else address

    def _pin(self, pids: Mapping[str, int]) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        check(len(self._cores) > 1, "the number of cores", len(self._cores), "2 or more with --pin")
        for role, pid in pids.items():
            _set_cores(pid, self._cores[:1] if role == "target" else self._cores[1:])


def _set_cores(pid: int, cores: Sequence[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are exact: those of epoll are whole milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def rounds_figures(samples: Samples) -> dict[str, dict[str, Any]]:
    """Return, by name: speed, identity, and the parts of a round in milliseconds."""
    return {name: _figures(of, samples[EMBEDDED]) for name, of in samples.items()}


def _figures(of: Sequence[Sample], embedded: Sequence[Sample]) -> dict[str, Any]:
    figures, different = sample_figures(of, embedded), sample_differences(of, embedded)
    rounds = max(figures["rounds"], 1)
    timings = [sample.result.stats.timings for sample in of]
    parts = parts_of(timings)
    # Rounds whose proposal was there before the draft was asked for it.
    ahead = sum(sample.result.stats.speculation.stop_reasons.get(AHEAD, 0) for sample in of)
    prefill_s = sum(times.prefill_s for times in timings)
    # What callers waited for beside prompt and rounds: the way to the router.
    outside_s = (
        sum(sample.wall_s for sample in of) - prefill_s - sum(times.decode_s for times in timings)
    )
    return {
        **figures,
        "requests": len(of),
        "ahead_share": ahead / rounds,
        "identical": len(of) - len(different),
        "differences": different,
        "prefill_ms": 1000 * prefill_s / len(of),
        "outside_ms": 1000 * outside_s / len(of),
        "round_ms": {part: 1000 * seconds / rounds for part, seconds in parts.items()},
    }


def parts_of(timings: Sequence[Timings]) -> dict[str, float]:
    """Return the seconds of each part; they add up to all of decoding.

    Without services an engine's call is its work. The router keeps one figure for turning values
    into bytes and back on both of its wires; half of it is taken off either.
    """
    names = (field.name for field in fields(Timings))
    of = {name: float(sum(getattr(timing, name) for timing in timings)) for name in names}
    if not of["target_service_s"]:
        of |= dict.fromkeys(("draft_service_s", "draft_engine_s"), of["draft_s"])
        of |= dict.fromkeys(("target_service_s", "target_engine_s"), of["verify_s"])
    half_s = of["serialisation_s"] / 2
    return {
        "draft_engine": of["draft_engine_s"],
        "kv_wait": of["kv_wait_s"],
        "draft_service": of["draft_service_s"] - of["draft_engine_s"] - of["kv_wait_s"],
        "draft_wire": of["draft_s"] - of["draft_service_s"] - half_s,
        "target_engine": of["target_engine_s"],
        "target_service": of["target_service_s"] - of["target_engine_s"],
        "target_wire": of["verify_s"] - of["target_service_s"] - half_s,
        "serialisation": of["serialisation_s"],
        "rest": of["decode_s"] - of["draft_s"] - of["verify_s"],
    }


def answers_table(figures: ByName) -> Table:
    """Return the speed of every engine, one row each."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "ratio": number("ratio", 3, "x"),
        "decode tokens/s": number("decode_tokens_per_s", 1),
        "ratio decode": number("ratio_decode", 3, "x"),
        "tokens per round": lambda of: fixed(quotient(of["tokens"], of["rounds"]), 2),
        "without a wait": lambda of: f"{of['ahead_share']:.0%}",
        "prefill ms": number("prefill_ms", 1),
        "outside ms": number("outside_ms", 1),
        "identical": lambda of: (
            "reference" if of is figures[EMBEDDED] else f"{of['identical']}/{of['requests']}"
        ),
    }
    return table_of([""], columns, (([name], of) for name, of in figures.items()))


def parts_table(figures: ByName) -> Table:
    """Return what a mean round's milliseconds go to, one column for each engine."""
    rows = table("ms per round", *figures)
    for part, label in PARTS.items():
        rows.add_row(label, *(fixed(of["round_ms"][part], 3) for of in figures.values()))
    totals = (sum(of["round_ms"].values()) for of in figures.values())
    rows.add_row("all", *(fixed(total, 3) for total in totals))
    return rows


def remarks(figures: ByName) -> list[str]:
    """Return what went wrong: other tokens, rounds without a draft."""
    lines = []
    for name, of in figures.items():
        if places := of["differences"]:
            where = position_text(places)
            lines.append(f"{name}: other tokens than {EMBEDDED} in question {where}")
        if of["fallbacks"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in of["fallbacks"].items())
            lines.append(f"{name}: rounds without a draft: {reasons}")
    return lines

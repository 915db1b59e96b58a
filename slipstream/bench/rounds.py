"""Cost of a round, embedded and distributed, in turn, and the speed of the stream of keys."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import grpc.aio
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
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.results import Timings
from slipstream.core.sequence import TokenSequence
from slipstream.core.stop_reasons import AHEAD
from slipstream.core.types import Proposal, ReplyTiming, Session
from slipstream.drafting.kv_mirror import KvMirror
from slipstream.local.stack import Stack, StackPlan
from slipstream.models.dtypes import CPU
from slipstream.models.kv.cache import view_layout
from slipstream.models.kv.pool import KvLayout
from slipstream.options import option
from slipstream.rpc.channel import ChannelOptions, call_unary, connect
from slipstream.rpc.conversion.convert_common import value_from_pb
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.kv import (
    DTYPE,
    ENCODING,
    KvEncoding,
    KvFormat,
    KvStreamSource,
    frame_from_bytes,
    keep_freed_memory,
)
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.tensors import element_type, unpack
from slipstream.rpc.v1 import target_pb2

T = TypeVar("T")
_SERVICE = "/slipstream.rpc.v1.TargetService"
_KV_REPEATS = 3
_KV_TOKENS = 2048
"""Largest number of positions of a streamed text."""

EMBEDDED = "embedded"
"""Baseline: both engines in one process."""
ALONE = "rounds alone"
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


@dataclass(frozen=True, slots=True)
class RoundsPlan(TurnPlan):
    """Plan of a comparison; every round drafts, so that all parts of a round are seen."""

    overlap: bool = option(False, "Also measure with the option overlap.")
    kv: bool = option(
        False, "Also measure the stream of the target's keys and values, and rounds beside it."
    )

    def ask(self, client: Client, *, overlap: bool = False) -> Ask:
        """Return a function that sends questions to an engine or to services."""
        speculation = SpeculationOptions(mode=Mode.FORCED, overlap=overlap)
        return partial(client.generate, sampling=self.sampling.params(), speculation=speculation)


async def with_services(plan: StackPlan, work: Callable[[str, str], T]) -> T:
    """Return what `work` does, in a thread, with the addresses of router and target of target,
    draft and router on this machine; their logs are ignored, as what keeps one from starting is
    raised."""
    stack = Stack(plan, on_line=lambda name, line: None)
    try:
        router = await stack.start()
        return await asyncio.to_thread(work, router, stack.engines["target"])
    finally:
        await stack.stop(hurry=True)


async def kv_figures(address: str, *, seconds: float = 1.0) -> ByName:
    """Return the speed of a target's stream of keys and values, of all its layers, by encoding:
    MB/s alone and beside a session that verifies without a pause, and the median milliseconds of
    that session's rounds in the target; those without a stream under `ALONE`.

    Medians of runs in turn, each of `seconds`; the reader is this process.
    """
    keep_freed_memory()
    async with connect(address, ChannelOptions()) as channel:
        method, request = f"{_SERVICE}/DescribeTarget", target_pb2.DescribeTargetRequest()
        about = await call_unary(channel, method, request, target_pb2.DescribeTargetResponse)
        stream, samples = _KvStream(channel, about, seconds), {ALONE: list[dict[str, float]]()}
        await stream.target.verify(stream.sequence, Proposal())
        for _ in range(_KV_REPEATS):
            samples[ALONE].append({"round_ms": await stream.round_ms()})
            for encoding in KvEncoding:
                alone = await stream.mb_per_s(encoding)
                both = await asyncio.gather(stream.mb_per_s(encoding), stream.round_ms())
                sample = {"mb_per_s": alone, "beside_mb_per_s": both[0], "round_ms": both[1]}
                samples.setdefault(encoding, []).append(sample)
        stream.target.end()
    return {
        name: {key: median(one[key] for one in of) for key in of[0]} for name, of in samples.items()
    }


class _KvStream:
    """A long text in a target, whose keys and values are read again and again."""

    def __init__(
        self, channel: grpc.aio.Channel, about: target_pb2.DescribeTargetResponse, seconds: float
    ) -> None:
        self._channel, self._about, self._seconds = channel, about, seconds
        self.target, self._most = self._remote(), min(_KV_TOKENS, about.context_length // 2)
        self.sequence = self._text("kv", self._most)
        dtype = DTYPE.from_pb(about.layout.dtype, may_be_none=False)
        assert dtype is not None
        whole = value_from_pb(KvLayout, about.layout, dtype=element_type(dtype), device=CPU)
        layers = tuple(range(whole.num_layers))
        self._layout = view_layout(whole, layers)
        self._form = KvFormat(layers, whole.num_kv_heads, whole.head_dim, dtype)

    def _remote(self) -> RemoteTarget:
        return RemoteTarget(Peer("the target", self._channel), self._about.identity, CallOptions())

    def _text(self, session_id: str, length: int) -> TokenSequence:
        tokens = (number % self._about.identity.vocab_size for number in range(length))
        return TokenSequence(Session(session_id, length, self._most), tokens)

    async def round_ms(self) -> float:
        """Return the median time of plain rounds in the target, each of one token."""
        target, times, until = self._remote(), list[float](), time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            sequence = self._text("rounds", self._most // 4)
            for _ in range(self._most // 4):  # then from the start, so that rounds stay alike
                verdict = await target.verify(sequence, Proposal())
                sequence.append(verdict.tokens)
                times.append(1000 * (verdict.timing or ReplyTiming()).service_s)
        target.end()
        return median(times)

    async def mb_per_s(self, encoding: KvEncoding) -> float:
        """Return the speed of whole snapshots, each into memory of its own."""
        form = replace(self._form, encoding=encoding)
        num_read, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < self._seconds:
            await self._read(form)
            num_read += len(self.sequence)
        return num_read * form.bytes_per_position / elapsed / 1e6

    async def _read(self, form: KvFormat) -> None:
        feed = self.target.feed("")
        assert feed is not None
        source = KvStreamSource(feed.session_id, feed.incarnation)
        request = target_pb2.StreamKvRequest(
            protocol_version=PROTOCOL_VERSION,
            session_id=feed.session_id,
            incarnation=feed.incarnation,
            credential=feed.credential,
            layers=form.layers,
            encoding=ENCODING.to_pb(form.encoding),  # type: ignore[arg-type]
        )
        mirror = KvMirror(form.layers, self._layout, limit=self._most)
        mirror.reserve(self._most)
        method: Any = self._channel.unary_stream(f"{_SERVICE}/StreamKv")
        call = method(request.SerializeToString())
        while mirror.count < self._most:
            frame = frame_from_bytes(await call.read(), source, form)
            mirror.write(frame.start, unpack(frame, form))
        call.cancel()


def kv_table(figures: ByName) -> Table:
    """Return the speed of the stream by encoding, and what it costs the rounds beside it."""
    columns = {
        "MB/s": lambda of: fixed(of.get("mb_per_s"), 0),
        "MB/s beside rounds": lambda of: fixed(of.get("beside_mb_per_s"), 0),
        "ms per round": number("round_ms", 2),
        "of those alone": lambda of: fixed(of["round_ms"] / figures[ALONE]["round_ms"], 2, "x"),
    }
    return table_of(["keys and values"], columns, (([name], of) for name, of in figures.items()))


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

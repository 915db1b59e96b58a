"""Costs of forwards: of a target, or of random weights, by batched tokens; and of a draft step.

Everything is timed in turn, round after round, and reported as a median, so that a drift of the
machine hits all of it alike.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from rich.table import Table

from slipstream.bench.figures import fixed, quotient, table
from slipstream.core.errors import InvalidRequest, PromptTooLong, check
from slipstream.core.inline import finished
from slipstream.core.policy.profile import Profile
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Plan, Session
from slipstream.drafting.build import DraftModel
from slipstream.models.causal import CausalModel
from slipstream.models.decoder import Decoder
from slipstream.models.dtypes import CPU
from slipstream.models.kv.batch import Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.memory import free_bytes, wait_for
from slipstream.models.native.model import NativeDecoder
from slipstream.models.scorer import Grow, KvView, Scorer, Sync
from slipstream.options import check_bounds, option, parse_numbers

MAX_ROWS = 128
DRAFTED = 5
"""Nodes of the chain that a draft step is the median of, where its training allows so many."""
_WARMUP = 3
_UNITS = {"gmac_per_s": "GMAC/s", "gb_per_s": "GB/s"}

Action = Callable[[], object]


@dataclass(frozen=True, slots=True)
class CostPlan:
    """Plan of timings."""

    rows: str = option("1,2,4,8,16,32", "Tokens of a verification, ascending from 1.")
    sessions: str = option("1,8,32", "Sessions of a shape that share steps, ascending from 1.")
    context: int = option(300, "Tokens before those that are verified.", least=2)
    rounds: int = option(20, "Timings of each forward; tokens of a request to a shape.", least=1)
    roofline: bool = option(False, "Also what this machine could do at most, measured.")
    shape: str | None = option(
        None,
        "Instead of a target and a draft, both of random weights: llama-3.2-1b, llama-3-8b, or a"
        " directory with a config.json.",
    )

    def __post_init__(self) -> None:
        for name in ("rows", "sessions"):
            counts = self.counts(name)
            if counts[0] != 1 or list(counts) != sorted(set(counts)):
                raise InvalidRequest(f"{name} are {list(counts)}, but must ascend from 1")
            check(counts[-1] <= MAX_ROWS, f"the last of {name}", counts[-1], f"at most {MAX_ROWS}")
        check_bounds(self)

    def counts(self, name: str) -> tuple[int, ...]:
        """Return the numbers of `rows` or of `sessions`. Raises `InvalidRequest` for what is no
        list of them."""
        return parse_numbers(name, getattr(self, name))


def measure_cost(
    plan: CostPlan, model: CausalModel, text: list[int], draft: DraftModel | None
) -> dict[str, Any]:
    """Return all costs in milliseconds, after as many tokens of `text` as the plan's context.

    `forward_ms` maps the number of rows (as text) to the time of a verification, head included,
    `sessions_ms` that of sessions to the time of one token of each, and `floors_ms` to that of
    reading its weights and keys, with a device or a shape. `draft` is None without a draft. Raises
    `PromptTooLong` where it does not fit.
    """
    tokens, counts = _context(plan, model, text), plan.counts("sessions") if plan.shape else ()
    caches, verify = (
        _prefilled(model, tokens, max(counts, default=1)),
        partial(_verify, model, tokens),
    )
    actions: dict[Any, Action] = {
        rows: partial(verify, rows, caches[:1]) for rows in plan.counts("rows")
    }
    actions |= {str(count): partial(verify, 1, caches[:count]) for count in counts}
    drafted = 0
    if draft is not None:
        drafted = min(DRAFTED, draft.scorer.max_lag or DRAFTED)
        actions |= _draft_actions(draft, caches[0], tokens, drafted=drafted)
    ms = _medians(actions, plan.rounds, model.device)
    forward_ms = {str(rows): ms[rows] for rows in plan.counts("rows")}
    has_floor = plan.shape is not None or model.device != CPU
    floors_ms = _floors_ms(model, len(tokens), counts or (1,)) if has_floor else {}
    return {
        "engine": model.engine,
        "context": len(tokens),
        "forward_ms": forward_ms,
        "sessions_ms": {str(count): ms[str(count)] for count in counts},
        "floors_ms": floors_ms,
        "of_floor": quotient(floors_ms.get("1"), ms[1]),
        "draft": None if draft is None else _draft_cost(ms, drafted),
        "roofline": roofline_of(model.decoder, forward_ms) if plan.roofline else None,
    }


def _prefilled(model: CausalModel, tokens: Sequence[int], num_sessions: int) -> list[KvCache]:
    pool = model.pool(num_sessions * -(-len(tokens) // BLOCK_SIZE))
    caches = [model.open_in(pool) for _ in range(num_sessions)]
    for cache in caches:
        model.prefill(cache, tokens[:-1])
    return caches


def _verify(
    model: CausalModel, tokens: Sequence[int], num_tokens: int, caches: Sequence[KvCache]
) -> None:
    """Compute the logits of the last token and a chain of drafted ones, for each of the caches;
    nothing becomes final, so each time is like the first."""
    drafted = [tokens[index % len(tokens)] for index in range(num_tokens - 1)]
    pending, tree = tokens[-1:], TokenTree.chain(drafted)
    hidden, _ = model.forward([Part(cache, pending, tree) for cache in caches])
    model.logits(hidden)


@dataclass(frozen=True, slots=True)
class CacheSource:
    """See `KvSource`: one cache, for one session."""

    cache: KvCache

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        return self.cache.view(layers)


def _draft_actions(
    model: DraftModel, cache: KvCache, tokens: Sequence[int], *, drafted: int
) -> dict[str, Action]:
    """Return a step of the model by itself, and a proposal of `drafted` tokens as a target gets
    it."""
    draft = model.draft(Profile(), source=CacheSource(cache))
    session = Session("cost", num_prompt_tokens=len(tokens), max_tokens=MAX_ROWS)
    sequence = TokenSequence(session, tokens)

    view = cache.view(model.layers) if model.layers else None
    sync = Sync(model.scorer.open(len(tokens) + MAX_ROWS), tokens, view)
    return {
        "step": partial(_chain_seconds, model.scorer, sync),
        "round": lambda: finished(draft.propose(sequence, Plan(drafted, drafted))),
    }


def _chain_seconds(scorer: Scorer, sync: Sync) -> list[float]:
    scorer.score([sync])
    seconds = []
    for node in range(DRAFTED):
        step = Grow(sync.state, sync.tokens[node : node + 1], [node - 1])
        start = time.perf_counter()
        scorer.score([step])
        seconds.append(time.perf_counter() - start)
    return seconds


def _medians(actions: Mapping[Any, Action], rounds: int, device: str) -> dict[Any, float]:
    """Return median milliseconds of every action; of its own seconds, where it returns them."""
    seconds: dict[Any, list[float]] = {name: [] for name in actions}
    for round_ in range(_WARMUP + rounds):
        for name, action in actions.items():
            taken = _timed(action, device)
            if round_ >= _WARMUP:
                seconds[name] += taken
    return {name: 1000 * median(values) for name, values in seconds.items()}


def _timed(action: Action, device: str) -> list[float]:
    start = time.perf_counter()
    result = action()
    wait_for(device)
    return result if isinstance(result, list) else [time.perf_counter() - start]


def _draft_cost(ms: Mapping[Any, float], drafted: int) -> dict[str, float]:
    target, step, per_token = ms[1], ms["step"], ms["round"] / drafted
    return {
        "step_ms": step,
        "step_ratio": step / target,
        "round_step_ms": per_token,
        "round_step_ratio": per_token / target,
    }


def _context(plan: CostPlan, model: CausalModel, text: list[int]) -> list[int]:
    if plan.context > model.context_length - plan.counts("rows")[-1]:
        raise PromptTooLong(
            f"a context of {plan.context} tokens leaves no room in the model's"
            f" {model.context_length}"
        )
    return (text * -(-plan.context // len(text)))[: plan.context]


def _floors_ms(model: CausalModel, context: int, counts: Sequence[int]) -> dict[str, float]:
    """Return the time in which a large copy moves the weights and keys that a plain step of so many
    sessions reads."""
    import torch

    decoder: Any = model.decoder
    read = decoder.roofline()[1] if isinstance(decoder, NativeDecoder) else decoder.read_bytes
    device = model.device
    size = min(1 << (27 if device == CPU else 30), free_bytes(device) // 8)
    source, into = torch.ones(2, size, dtype=torch.uint8, device=device)
    copy_s = min(_timed(partial(into.copy_, source), device)[0] for _ in range(10))
    byte_ms, keys = 1000 * copy_s / (2 * size), context * model.layout.bytes_per_token
    return {str(count): byte_ms * (read + count * keys) for count in counts}


def roofline_of(decoder: Decoder, forward_ms: Mapping[str, float]) -> dict[str, Any]:
    """Return what the machine does at most with the decoder's kernels, and how much of it forwards
    of so many rows reach. Raises `InvalidRequest` where torch computes."""
    if not isinstance(decoder, NativeDecoder):
        raise InvalidRequest(f"the engine is {decoder.engine}, but a roofline is of native kernels")
    macs, size, macs_per_s, bytes_per_s = decoder.roofline()
    peaks = {"gmac_per_s": macs_per_s / 1e9, "gb_per_s": bytes_per_s / 1e9}
    reached = {
        rows: {"gmac_per_s": int(rows) * macs / ms / 1e6, "gb_per_s": size / ms / 1e6}
        for rows, ms in forward_ms.items()
    }
    return {"kernels": decoder.engine, "macs": macs, "bytes": size, "peak": peaks, "rows": reached}


def cost_table(cost: Mapping[str, Any]) -> Table:
    """Return what verifying some tokens takes and what a draft step, against one token, and what
    of the machine's peak that is; a step in a round includes reading its distribution."""
    ms, roofline = cost["forward_ms"], cost["roofline"] or {"peak": {}, "kernels": None}
    peak = roofline["peak"]
    columns = ("ms", "of one row", *(_UNITS[name] for name in peak))
    shown = table("rows", *columns, title=roofline["kernels"])
    for rows, own in ms.items():
        reached = ((roofline["rows"][rows][name], most) for name, most in peak.items())
        shares = (f"{some:.1f} ({some / most:.0%})" for some, most in reached)
        shown.add_row(rows, fixed(own, 2), fixed(own / ms["1"], 2, "x"), *shares)
    for count, own in cost["sessions_ms"].items():
        shown.add_row(f"sessions: {count}", fixed(own, 2), fixed(own / ms["1"], 2, "x"))
    draft = cost["draft"] or {}
    for name, key in (("draft step", "step"), ("in a round", "round_step")) if draft else ():
        shown.add_row(name, fixed(draft[f"{key}_ms"], 3), fixed(draft[f"{key}_ratio"], 3, "x"))
    if peak:
        shown.add_row("peak", "", "", *(fixed(most, 1) for most in peak.values()))
    return shown

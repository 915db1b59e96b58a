"""Costs of forwards: rows of the target, a step of the draft, plain decoding. Prints nothing.

Everything is timed in turn, round after round, and reported as a median, so that a drift of the
machine hits all of it alike.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from slipstream.bench.engines import MethodEngines
from slipstream.bench.harness import require_at_least
from slipstream.bench.methods import Method, parse_method
from slipstream.core.errors import InvalidRequest, PromptTooLong
from slipstream.core.inline import finished
from slipstream.core.profile import Profile
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Plan, Session, StopPolicy
from slipstream.draft.build import DraftModel
from slipstream.models.batched_tokens import Part
from slipstream.models.cache import KvCache
from slipstream.models.causal import CausalModel
from slipstream.models.scorer import Grow, KvView, Scorer, Sync

MAX_ROWS = 128
DRAFTED = 5
"""Nodes of the chain that a draft step is the median of, where its training allows so many."""
_WARMUP = 3
_NEVER = 1e-300
"""A cost ratio that no path falls below."""

Action = Callable[[], object]


@dataclass(frozen=True, slots=True)
class CostPlan:
    """Plan of timings: forwards of `rows` rows behind `context` tokens, `rounds` times each.

    `plain_tokens` is the length of the replies of plain decoding, of which there are
    `plain_rounds` by each method of `plain`.
    """

    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    context: int = 300
    rounds: int = 20
    plain_tokens: int = 48
    plain_rounds: int = 3
    plain: tuple[str, ...] = ("plain", "plain+invariant", "hf")

    def __post_init__(self) -> None:
        if not self.rows or self.rows[0] != 1 or list(self.rows) != sorted(set(self.rows)):
            raise InvalidRequest(f"rows are {list(self.rows)}, but must ascend from 1")
        if self.rows[-1] > MAX_ROWS:
            raise InvalidRequest(f"rows go up to {self.rows[-1]}, but must be at most {MAX_ROWS}")
        require_at_least(self, context=2, rounds=1, plain_tokens=2)


def measure_cost(
    plan: CostPlan, engines: MethodEngines, text: str, *, has_draft: bool
) -> dict[str, Any]:
    """Return all costs in milliseconds, after as many tokens of `text` as the plan's context.

    `forward_ms` maps numerics and number of rows (as text) to the time of a verification, head
    included. `draft` is None without a draft. Raises `PromptTooLong` where it does not fit.
    """
    tokens = _context(plan, engines, text)
    targets = {
        numerics: _Forwards(engines.engine(numerics).model, tokens)
        for numerics in ("fast", "invariant")
    }
    actions: dict[Any, Action] = {
        (numerics, rows): _bound(forwards, rows)
        for rows in plan.rows
        for numerics, forwards in targets.items()
    }
    drafted = 0
    if has_draft:
        model = engines.draft_model("fast")
        drafted = min(DRAFTED, model.scorer.max_lag or DRAFTED)
        actions |= _draft_actions(model, targets["fast"].cache, tokens, drafted=drafted)
    ms = _medians(actions, plan.rounds, targets["fast"].model.device)
    return {
        "context": len(tokens),
        "forward_ms": {
            numerics: {str(rows): ms[numerics, rows] for rows in plan.rows} for numerics in targets
        },
        "draft": _draft_cost(ms, drafted) if has_draft else None,
        "plain_ms_per_token": _plain_ms(plan, engines, tokens),
    }


class _Forwards:
    """Verifications behind one context; none of them becomes final, so each is like the first."""

    def __init__(self, model: CausalModel, tokens: Sequence[int]) -> None:
        self.model = model
        self.tokens = tokens
        self.cache = model.open(len(tokens) + MAX_ROWS)
        model.prefill(self.cache, tokens[:-1])

    def run(self, num_rows: int) -> None:
        """The last token and a chain of drafted ones, as logits."""
        drafted = [self.tokens[at % len(self.tokens)] for at in range(num_rows - 1)]
        tree = TokenTree.chain(drafted)
        hidden, _ = self.model.forward([Part(self.cache, self.tokens[-1:], tree)])
        self.model.logits(hidden)


def _bound(forwards: _Forwards, rows: int) -> Action:
    return lambda: forwards.run(rows)


@dataclass(frozen=True, slots=True)
class _Source:
    """A cache as what a draft reads."""

    cache: KvCache

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """See `KvSource.view`; there is one session only."""
        return self.cache.view(layers)


def _draft_actions(
    model: DraftModel, cache: KvCache, tokens: Sequence[int], *, drafted: int
) -> dict[str, Action]:
    """A step of the model by itself, and proposals as a target gets them: of one token, of
    `drafted` ones, and of as many that the decision model has scored."""
    scorer = model.scorer
    view = cache.view(model.layers) if model.layers else None
    state = scorer.open(len(tokens) + MAX_ROWS)
    scorer.score([Sync(state, tokens, view)])
    draft = model.draft(Profile(), source=_Source(cache))
    session = Session("cost", num_prompt_tokens=len(tokens), max_tokens=MAX_ROWS)
    sequence = TokenSequence(session, tokens)

    def proposing(plan: Plan) -> Action:
        return lambda: finished(draft.propose(sequence, plan))

    actions = {
        "step": _Chain(scorer, state, tokens, view).grow,
        "first": proposing(Plan(1, 1)),
        "round": proposing(Plan(drafted, drafted)),
    }
    if model.decision is not None:
        scored = Plan(drafted, drafted, stop=StopPolicy.COST, threshold=_NEVER)
        actions["scored"] = proposing(scored)
    return actions


class _Chain:
    """A draft chain that is grown a node at a time, and begun anew when it is long enough."""

    def __init__(
        self, scorer: Scorer, state: Any, tokens: Sequence[int], view: KvView | None
    ) -> None:
        self._scorer, self._state = scorer, state
        self._tokens, self._view = tokens, view

    def grow(self) -> list[float]:
        """Seconds of each of the chain's steps."""
        self._scorer.score([Sync(self._state, self._tokens, self._view)])
        seconds = []
        for node in range(DRAFTED):
            ask = Grow(self._state, self._tokens[node : node + 1], [node - 1])
            start = time.perf_counter()
            self._scorer.score([ask])
            seconds.append(time.perf_counter() - start)
        return seconds


def _medians(actions: Mapping[Any, Action], rounds: int, device: torch.device) -> dict[Any, float]:
    """Median milliseconds of every action; of its own seconds, where it says them."""
    seconds: dict[Any, list[float]] = {name: [] for name in actions}
    for round_ in range(_WARMUP + rounds):
        for name, action in actions.items():
            taken = _timed(action, device)
            if round_ >= _WARMUP:
                seconds[name] += taken
    return {name: 1000 * median(values) for name, values in seconds.items()}


def _timed(action: Action, device: torch.device) -> list[float]:
    start = time.perf_counter()
    result = action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result if isinstance(result, list) else [time.perf_counter() - start]


def _draft_cost(ms: Mapping[Any, float], drafted: int) -> dict[str, float]:
    """`first_ms` is a proposal of one token, `more_ms` what another adds, `score_ms` a score."""
    target, step, per_token = ms["fast", 1], ms["step"], ms["round"] / drafted
    scored = ms.get("scored", ms["round"]) - ms["round"]
    more = (ms["round"] - ms["first"]) / (drafted - 1) if drafted > 1 else step
    return {
        "step_ms": step,
        "step_ratio": step / target,
        "round_step_ms": per_token,
        "round_step_ratio": per_token / target,
        "first_ms": ms["first"],
        "more_ms": max(more, 0.0),
        "score_ms": max(scored, 0.0) / drafted,
    }


def _plain_ms(
    plan: CostPlan, engines: MethodEngines, tokens: Sequence[int]
) -> dict[str, float | None]:
    """Milliseconds per token after the first; None where the model ended at once."""
    methods = [parse_method(name) for name in plan.plain]
    ms: dict[str, list[float]] = {name: [] for name in plan.plain}
    for round_ in range(1 + plan.plain_rounds):
        for method in methods:
            value = _ms_per_token(engines, method, tokens, plan.plain_tokens)
            if round_ and value is not None:
                ms[method.name].append(value)
    return {name: median(values) if values else None for name, values in ms.items()}


def _ms_per_token(
    engines: MethodEngines, method: Method, tokens: Sequence[int], max_tokens: int
) -> float | None:
    conversation = engines.conversation(method)
    try:
        reply = conversation.reply(tokens, max_tokens)
    finally:
        conversation.close()
    later = len(reply.token_ids) - 1
    return 1000 * reply.timings.decode_s / later if later else None


def _context(plan: CostPlan, engines: MethodEngines, text: str) -> list[int]:
    engine = engines.engine("fast")
    room = engine.model.context_length - max(plan.rows[-1], plan.plain_tokens)
    if plan.context > room:
        raise PromptTooLong(
            f"a context of {plan.context} tokens leaves no room in the model's"
            f" {engine.model.context_length}"
        )
    tokens = engine.text.encode(text, add_special_tokens=False)
    return (tokens * -(-plan.context // len(tokens)))[: plan.context]

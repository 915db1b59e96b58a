"""The target's engine, built of a loaded model."""

import logging
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.core.errors import ModelMismatch
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.request.request import ModelFacts
from slipstream.models.causal import CausalModel
from slipstream.models.format.digests import bytes_digest
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.loaded import LoadedModel, sampling_defaults
from slipstream.models.loading import causal_model
from slipstream.models.machine import this_machine
from slipstream.models.memory import AUTO, MemoryPlan, num_pages
from slipstream.text.tool_prompt import AUTO_FORMAT, format_of
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.grammars import Grammars
from slipstream.verifying.memory import KvMemory
from slipstream.verifying.meter import LoadMeter, StepBudget
from slipstream.verifying.trial import learn_cost

if TYPE_CHECKING:
    from slipstream.models.torch.tensor_parallel import TensorParallelGroup

_LOG = logging.getLogger("slipstream.target")

MAX_ROWS = 256
"""Batched tokens of a step, if not configured."""
_TILE = 32
"""Tokens that are worth filling up where no product has a size of its own."""
_LEARN_TOKENS = 128
_LEARN_S = 1.5
"""Time that the start spends on measuring the costs of steps."""


@dataclass(frozen=True, slots=True)
class BuiltTarget:
    """An engine, the model it runs, the facts that requests are checked against, its memory, and
    the budget of a step."""

    target: LocalTarget
    model: CausalModel
    facts: ModelFacts
    memory: MemoryPlan
    budget: StepBudget


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """Limits of what an engine holds and computes at once.

    `kv_memory` is a budget as in `models.memory.num_pages`; `max_cached_bytes` bounds the prefix
    cache (None: all of it); `max_rows` are the batched tokens of one step. `max_prompt_delay_s` is
    the longest time that prompts add to a step of running sessions. Caches keep the hidden states
    that `hidden_layers` take in.
    """

    max_sessions: int = 64
    kv_memory: str = AUTO
    max_cached_bytes: int | None = None
    max_rows: int = MAX_ROWS
    max_prompt_delay_s: float = 0.05
    hidden_layers: tuple[int, ...] = ()


def build_target(
    loaded: LoadedModel,
    *,
    numerics: str = "auto",
    limits: TargetLimits | None = None,
    team: "TensorParallelGroup | None" = None,
    tool_format: str = AUTO_FORMAT,
    has_defaults: bool = True,
) -> BuiltTarget:
    """Build an engine that takes the loaded model over.

    With a `team` this is rank 0 of it, which drives the others; `has_defaults` False leaves the
    model's sampling defaults out. Raises `CapacityError` where the budget holds no page.
    """
    limits = limits or TargetLimits()
    defaults = sampling_defaults(loaded.path) if has_defaults else {}
    model = causal_model(
        loaded.model,
        numerics=numerics,
        split=team,
        path=loaded.path,
        hidden_layers=limits.hidden_layers,
    )
    memory, plan = plan_memory(model, limits)
    meter, budget = _metered(model, memory, limits, loaded.path)
    grammars = grammars_of(loaded, model.vocab_size)
    target = LocalTarget(model, memory, meter, max_sessions=limits.max_sessions, grammars=grammars)
    facts = ModelFacts(
        loaded.model_id,
        model.vocab_size,
        model.context_length,
        loaded.stop_token_ids,
        has_grammars=grammars is not None,
        max_logprobs=MAX_LOGPROBS,
        is_fallback=model.engine == "torch",
        tool_format=format_of(loaded.tokenizer.chat_template, tool_format),
        sampling_defaults=defaults,
    )
    return BuiltTarget(target, model, facts, plan, budget)


def _metered(
    model: CausalModel, memory: KvMemory, limits: TargetLimits, path: Path
) -> tuple[LoadMeter, StepBudget]:
    """Return the meter that makes offers, and the budget of a step, by the costs of steps here."""
    name = f"costs of {path} {model.weight_bytes} {model.dtype.name}"
    curve = learn_cost(
        model,
        memory.pool,
        max_tokens=min(limits.max_rows, _LEARN_TOKENS),
        seconds=_LEARN_S,
        name=f"{name} {model.numerics} {model.engine}",
    )
    budget = StepBudget(
        limits.max_rows,
        min(model.rule.max_rows, _TILE),
        max_delay_s=limits.max_prompt_delay_s,
        seconds=lambda num_tokens, num_keys: curve.seconds(num_tokens, keys=num_keys),
    )
    return LoadMeter(curve, max_tokens=limits.max_rows), budget


def plan_memory(model: CausalModel, limits: TargetLimits) -> tuple[KvMemory, MemoryPlan]:
    """Return the engine's pages, and the account of all its memory."""
    layout = model.layout
    longest = round_up(model.context_length, BLOCK_SIZE) // BLOCK_SIZE
    workspace = model.workspace_bytes(limits.max_rows)
    count = num_pages(
        limits.kv_memory,
        layout.device,
        layout.bytes_per_page,
        workspace_bytes=workspace,
        most=limits.max_sessions * longest,
    )
    pool = model.pool(count, scratch_rows=limits.max_rows)
    model.decoder.prepare(pool)
    kept = limits.max_cached_bytes
    max_cached = None if kept is None else kept // layout.bytes_per_page
    memory = KvMemory(pool, limit=model.context_length, max_cached_pages=max_cached)
    plan = MemoryPlan(model.weight_bytes, count, layout.bytes_per_page, workspace)
    return memory, plan


def grammars_of(loaded: LoadedModel, vocab_size: int) -> Grammars | None:
    """Return the grammars of a model's outputs; None, with a warning, where its tokenizer does not
    allow them."""
    try:
        text, ends = loaded.tokenizer, loaded.stop_token_ids
        digest = bytes_digest(text.parts().json)
        name = f"grammars of {digest} {vocab_size} {sorted(ends)} {version('llguidance')}"
        is_known = this_machine().get(name) is True
        grammars = Grammars(text, vocab_size=vocab_size, stop_token_ids=ends, is_known=is_known)
    except ModelMismatch as error:
        _LOG.warning("no output of %s can follow a grammar: %s", loaded.model_id, error)
        return None
    if not is_known:
        this_machine().keep(name, True)
    return grammars

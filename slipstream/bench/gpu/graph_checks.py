"""Captured forwards and chains beside the same without capture, on the device that computes."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from slipstream.bench.cost import CacheSource
from slipstream.bench.gpu.floors import memory_use
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.inline import finished
from slipstream.core.policy.profile import Profile
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Plan, Proposal, Session, Shape
from slipstream.drafting.build import DraftModel
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.models.causal import CausalModel
from slipstream.models.cuda.decoder import CudaDecoder
from slipstream.models.cuda.graphs import Replay
from slipstream.models.glide.glide_chains import GlideChains
from slipstream.models.kv.batch import Draw, Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.loading import causal_model
from slipstream.models.torch.loading import load_target_parts

_ROWS = (1, 2, 6, 16, 64, 256)
_CONTEXTS = (5, 300, 1500)
_HEAT = 0.7
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.02}
"""Largest relative error of hidden states beside those of another kernel."""


def check_graphs(target: str, draft: str, *, dtype: str, device: str) -> dict[str, Any]:
    """Return, of captured forwards and chains, how far they are from the same without capture.

    `is_equal` is False where a graph has other bits than its body, or hidden states are too far
    from those of forwards without shapes; see `faults`.
    """
    models = [
        causal_model(load_target_parts(target, dtype=dtype, device=device).model, engine=engine)
        for engine in ("cuda", "torch")
    ]
    forwards = list(_forwards(*models))
    graphs = cast(CudaDecoder, models[0].decoder).replay
    options = EngineOptions(dtype, "fast", device=device)
    model = Engine.load(target, options).draft_model(draft)
    return {
        "forwards": forwards,
        "graphs": _graphs(graphs),
        "waits": _waits(graphs, models[0].device),
        "chains": _chains(model, models[1]),
        "memory": memory_use(models[0].device),
    }


def faults(found: dict[str, Any]) -> Iterator[str]:
    """Yield the forwards and graphs that are not as they must be."""
    chains = found["chains"] or {"graphs": []}
    for of in (*found["forwards"], *found["graphs"], *chains["graphs"]):
        if not of["is_equal"]:
            yield f"different: {of}"


def _forwards(shaped: CausalModel, plain: CausalModel) -> Iterator[dict[str, Any]]:
    room = shaped.context_length - max(_ROWS)
    pool = shaped.pool(-(-(max(_CONTEXTS) + max(_ROWS)) // BLOCK_SIZE))
    for context in sorted({min(context, room) for context in _CONTEXTS}):
        for rows in _ROWS:
            cache = shaped.open_in(pool)
            own = plain.open(context + max(_ROWS))
            found, expected = (
                _states(model, used, context, rows)
                for model, used in ((shaped, cache), (plain, own))
            )
            cache.close()
            error = float((found - expected).norm() / expected.norm())
            limit = _TOLERANCE[shaped.dtype.name]
            yield {"rows": rows, "context": context, "error": error, "is_equal": error < limit}


def _states(model: CausalModel, cache: KvCache, context: int, rows: int) -> Tensor:
    """Return hidden states [rows, d], fp32, after tokens were drawn greedily and not."""
    tokens = _tokens(model, context + rows)
    cache.reserve(context + rows)
    model.prefill(cache, tokens[:context])
    part = Part(cache, tokens[context : context + 1], TokenTree.chain(tokens[context + 1 :]))
    for heat in (0.0, _HEAT):
        draws = [Draw(row, heat, (row, 1) if heat else (0, 0)) for row in range(rows)]
        model.draw([part], draws)
    hidden: Tensor = model.forward([part])[0].float()
    return hidden


def _tokens(model: CausalModel, count: int) -> list[int]:
    return [1 + index * 7919 % (model.vocab_size - 1) for index in range(count)]


def _graphs(graphs: Replay) -> list[dict[str, Any]]:
    return [
        {"key": repr(key), "is_equal": all(map(_same, replayed, computed))}
        for key, replayed, computed in graphs.both()
    ]


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _waits(graphs: Replay, device: str) -> dict[str, Any] | None:
    """Return whether bodies and replays never wait for the device; None on a CPU.

    torch raises in its mode "error" at each wait.
    """
    if device == "cpu":
        return None
    torch.cuda.set_sync_debug_mode("error")
    try:
        count = sum(1 for _ in graphs.both())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {"bodies": count}


def _chains(model: DraftModel, target: CausalModel) -> dict[str, Any] | None:
    """Compare chains on the device with those that the host leads; None without such chains."""
    if not model.layers or target.device == "cpu":
        return None
    tokens = _tokens(target, 120)
    cache = target.open(len(tokens) + BLOCK_SIZE)
    target.prefill(cache, tokens[:-1])
    source = CacheSource(cache)
    led = LocalDraft(
        model.scorer, TargetKv(source, model.layers), decision=model.score, profile=Profile()
    )
    drafts = (model.draft(Profile(), source=source), led)
    ours, theirs = ([_proposal(draft, tokens, seed) for seed in range(8)] for draft in drafts)
    equal = sum(one.tree == other.tree for one, other in zip(ours, theirs, strict=True))
    assert isinstance(drafts[0].chains, GlideChains), "a GliDe draft on CUDA has them"
    graphs = drafts[0].chains.replay
    return {
        "proposals": len(ours),
        "as_the_host": equal,
        "graphs": _graphs(graphs),
        "waits": _waits(graphs, target.device),
    }


def _proposal(draft: LocalDraft, tokens: Sequence[int], seed: int) -> Proposal:
    session = Session(f"chain {seed}", num_prompt_tokens=len(tokens), max_tokens=64)
    sequence = TokenSequence(session, [*tokens, 1 + seed])
    return finished(draft.propose(sequence, Plan(6, 20, Shape.CAPE)))

"""Files that benchmarks of a tiny pair of models need."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from slipstream.bench.harness import Sample
from slipstream.bench.questions import Question
from slipstream.core.request.results import PromptInfo, RequestStats, Result, Timings
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import FinishReason
from support.models.tiny_checkpoint import save_checkpoint, save_draft

FIGURES = {
    "tokens_per_s",
    "ratio",
    "ratio_decode",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "drafted_tokens",
    "outputs",
    "identical",
}
"""Keys of a method's figures."""


def save_pair(folder: Path, *, max_lag: int, vocab: torch.Tensor | None = None) -> list[str]:
    """Save a target, `tiny`, and untrained GliDe weights, `draft`; return the options for them."""
    target = save_checkpoint(folder / "tiny")
    vocab = torch.arange(259) if vocab is None else vocab
    save_draft(target, folder / "draft", vocab=vocab, max_lag=max_lag)
    return ["--target", str(target), "--draft", str(folder / "draft"), "--dtype", "float32"]


def save_prompts(folder: Path, *questions: tuple[int, str, list[str]]) -> list[str]:
    """Save prompts as (question_id, category, turns); return the option for them."""
    names = ("question_id", "category", "turns")
    lines = [json.dumps(dict(zip(names, item, strict=True))) for item in questions]
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines))
    return ["--prompts", str(path)]


def sample(
    tokens: Sequence[int],
    timings: Timings,
    speculation: SpeculationStats,
    *,
    wall_s: float,
    question_id: int = 1,
    category: str = "qa",
) -> Sample:
    """An answer of these tokens."""
    stats = RequestStats(3, 0, len(tokens), timings, speculation)
    prompt = PromptInfo("r", "m", 0, 3)
    result = Result("text", tuple(tokens), FinishReason.LENGTH, stats, prompt)
    return Sample(Question(question_id, category, ("?",)), result, wall_s)

"""Runs of the methods over the questions, in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slipstream.bench.engines import MethodEngines
from slipstream.bench.harness import (
    WARMUP_TOKENS,
    Advance,
    SamplingPlan,
    require_at_least,
    require_room,
    rotated,
)
from slipstream.bench.methods import PLAIN, Method
from slipstream.bench.questions import Question
from slipstream.bench.speed_figures import (
    Divergence,
    MethodComparison,
    Output,
    divergences,
    method_figures,
)
from slipstream.core.types import SamplingParams
from slipstream.core.verify.distribution import SamplingDistribution
from slipstream.core.verify.keyed_noise import Purpose
from slipstream.core.verify.noise import gumbel
from slipstream.models.scorer import on_host
from slipstream.models.target.causal import CausalModel
from slipstream.models.target.token_layout import Part
from slipstream.options import group, option
from slipstream.text.prompts import encode_prompt

Outputs = Mapping[str, Sequence[Output]]
"""Outputs by the name of the method."""


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """Plan of a comparison. `methods` include their references, see `with_references`."""

    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.")
    warmup: int = option(1, "Short unmeasured replies of each method first.")
    repeats: int = option(1, "Runs over all prompts.")
    sampling: SamplingPlan = group(SamplingPlan)
    methods: tuple[Method, ...] = ()
    questions: tuple[Question, ...] = ()

    def __post_init__(self) -> None:
        require_at_least(self, max_new_tokens=1, repeats=1, warmup=0)

    @property
    def num_replies(self) -> int:
        """Return the replies of the whole run, warm-up included."""
        return len(self.methods) * (self.repeats * len(self.questions) + self.warmup)


def run_speed(plan: SpeedPlan, engines: MethodEngines, *, advance: Advance) -> Outputs:
    """Return every output of every method; each question goes through all methods before the next.

    The order of the methods moves on by one from question to question. Raises `InvalidRequest`
    before anything is measured when a prompt does not fit.
    """
    for method in plan.methods:
        engines.load(method)
    _check_lengths(plan, engines)
    _warm_up(plan, engines, advance)
    outputs: dict[str, list[Output]] = {method.name: [] for method in plan.methods}
    for number, question in enumerate(plan.questions * plan.repeats):
        for method in rotated(plan.methods, number):
            outputs[method.name].append(_output(plan, engines, method, question))
            advance(method.name)
    return outputs


def compare(plan: SpeedPlan, engines: MethodEngines, outputs: Outputs) -> dict[str, Any]:
    """Return the figures of every method, with margins where outputs leave plain decoding's."""
    compared = {}
    for method in plan.methods:
        comparison = MethodComparison(
            method,
            outputs[method.name],
            outputs[PLAIN],
            outputs[method.reference],
            plan.sampling.params().is_greedy,
            _measured(plan, engines, method, outputs),
        )
        compared[method.name] = method_figures(comparison)
    return compared


def _measured(
    plan: SpeedPlan, engines: MethodEngines, method: Method, outputs: Outputs
) -> list[Divergence]:
    """Return where the outputs leave the reference's, with margins."""
    if not method.is_comparable(is_greedy=plan.sampling.params().is_greedy):
        return []
    reference = outputs[method.reference]
    by_question = {output.question_id: output for output in reversed(reference)}
    model = engines.engine(method.numerics).model
    measured = []
    for item in divergences(outputs[method.name], reference):
        plain = by_question[item.question_id]
        prefix = (*plain.prompt, *plain.reply.token_ids[: item.position])
        measured.append(replace(item, margin=margin(model, prefix, plan.sampling.params())))
    return measured


def _output(plan: SpeedPlan, engines: MethodEngines, method: Method, question: Question) -> Output:
    """Return the output for the first turn of a question."""
    prompt = encode_prompt(engines.engine("fast").text, question.turns[0])
    reply = engines.reply(method, prompt, plan.max_new_tokens)
    return Output(question.question_id, question.category, prompt, reply)


def _warm_up(plan: SpeedPlan, engines: MethodEngines, advance: Advance) -> None:
    """Let every method generate a little, so that what is done once is not measured."""
    short = replace(plan, max_new_tokens=min(plan.max_new_tokens, WARMUP_TOKENS))
    for _ in range(plan.warmup):
        for method in plan.methods:
            _output(short, engines, method, plan.questions[0])
            advance(method.name)


def _check_lengths(plan: SpeedPlan, engines: MethodEngines) -> None:
    engine = engines.engine("fast")
    limit = engine.model.context_length
    for question in plan.questions:
        length = len(encode_prompt(engine.text, question.turns[0]))
        require_room(question.question_id, length, plan.max_new_tokens, limit)


def margin(model: CausalModel, prefix: Sequence[int], sampling: SamplingParams) -> float:
    """Return the score of the token chosen after `prefix` over that of the next best.

    Greedy: the gap of the two best logits. Else the gap of log-probabilities (up to a
    constant) plus noise, the sum whose largest value is drawn.
    """
    cache = model.open(len(prefix))
    model.prefill(cache, prefix[:-1])
    hidden, _ = model.forward([Part(cache, prefix[-1:])])
    logits = on_host(model.logits(hidden))[0]
    scores = SamplingDistribution(sampling, len(prefix)).scores(logits, prefix)
    if not sampling.is_greedy:
        scores = scores + gumbel(sampling.seed, len(prefix), len(scores), purpose=Purpose.DRAW)
    second, best = np.partition(scores, -2)[-2:]
    return float(best - second)

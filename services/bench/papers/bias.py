"""By how much target-initialised roots leave the target's law, with plain decoding beside.

Prints nothing.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from slipstream.bench.contenders import Contenders
from slipstream.bench.figures import Output
from slipstream.bench.methods import PLAIN, Method, parse_method
from slipstream.bench.papers.candidates import BRANCHES, SAME_NUMERICS, TARGET_INIT
from slipstream.bench.papers.lineup import Lineup
from slipstream.bench.papers.plan import PapersPlan
from slipstream.bench.questions import Question, in_turn
from slipstream.bench.speed import Outputs
from slipstream.core.types import SamplingParams
from slipstream.models.causal import CausalModel
from slipstream.models.rows import Part
from slipstream.text.prompts import encode_prompt

_SIMULATED = 200
"""Samples of the exact law, of the same size, that tell what chance alone does."""
_SHOWN = 5
_ROOM = 8
"""Tokens a request is given, so that branches are drafted; only the first is looked at."""


def measure_bias(
    plan: PapersPlan,
    lineup: Lineup,
    outputs: Mapping[float, Outputs],
    advance: Callable[[str], None],
) -> dict[str, Any]:
    """How many greedy tokens are others, how likely the texts are, and the law of first tokens."""
    branches = _method(lineup, BRANCHES)
    greedy, sampled = outputs[0], outputs[1]
    same = _method(lineup, SAME_NUMERICS).name
    model = lineup.contenders.engine("invariant").model
    laws = [
        _law(plan, lineup.contenders, branches, question, advance)
        for question in in_turn(plan.questions)[: plan.num_laws]
    ]
    return {
        "greedy": differences(greedy[branches.name], greedy[same]),
        "log_probs": {
            "0": _log_probs(model, greedy[same], greedy[branches.name]),
            "1": _log_probs(model, sampled[PLAIN], sampled[branches.name]),
        },
        "laws": laws,
    }


def differences(outputs: Sequence[Output], reference: Sequence[Output]) -> dict[str, int]:
    """Outputs and tokens that are not the reference's, at the same place."""
    pairs = [
        (a.reply.token_ids, b.reply.token_ids) for a, b in zip(outputs, reference, strict=True)
    ]
    return {
        "outputs": len(pairs),
        "other_outputs": sum(a != b for a, b in pairs),
        "tokens": sum(max(len(a), len(b)) for a, b in pairs),
        "other_tokens": sum(
            sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b)) for a, b in pairs
        ),
    }


def total_variation(counts: Mapping[int, int], law: Tensor) -> float:
    """Half the sum of differences between shares of a sample and a law [V]."""
    size = sum(counts.values())
    seen = sum(abs(count / size - float(law[token])) for token, count in counts.items())
    unseen = 1 - sum(float(law[token]) for token in counts)
    return (seen + max(unseen, 0.0)) / 2


def noise_95(law: Tensor, size: int) -> float:
    """What the total variation of a fair sample of this size stays below in 95 of 100 cases."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.multinomial(law, size * _SIMULATED, replacement=True, generator=generator)
    found = sorted(
        total_variation(Counter(part.tolist()), law) for part in draws.view(_SIMULATED, size)
    )
    return found[int(0.95 * _SIMULATED)]


def _method(lineup: Lineup, label: str) -> Method:
    arms = (arm for at in TARGET_INIT.settings for arm in at.arms)
    return lineup.method(next(arm for arm in arms if arm.label == label))


def _log_probs(
    model: CausalModel, plain: Sequence[Output], branches: Sequence[Output]
) -> dict[str, float]:
    """Mean log-probability of a token under the target at temperature 1, in nats."""
    return {
        "plain": round(fmean(_log_prob(model, output) for output in plain), 4),
        "branches": round(fmean(_log_prob(model, output) for output in branches), 4),
    }


def _log_prob(model: CausalModel, output: Output) -> float:
    tokens = output.reply.token_ids
    rows = _logits(model, output.prompt, tokens[:-1])
    chosen = torch.tensor(tokens).unsqueeze(1).to(rows.device)
    return float(rows.log_softmax(-1).gather(1, chosen).mean())


def _logits(model: CausalModel, prompt: Sequence[int], more: Sequence[int]) -> Tensor:
    """Scores [1 + more, V] fp32 behind the prompt and each token after."""
    cache = model.open(len(prompt) + len(more))
    try:
        model.prefill(cache, prompt[:-1])
        hidden, _ = model.forward([Part(cache, (prompt[-1], *more))])
        return model.logits(hidden).float()
    finally:
        cache.close()


def _law(
    plan: PapersPlan,
    contenders: Contenders,
    branches: Method,
    question: Question,
    advance: Callable[[str], None],
) -> dict[str, Any]:
    engine = contenders.engine("invariant")
    prompt = encode_prompt(engine.text, question.turns[0])
    law = _logits(engine.model, prompt, ())[0].softmax(-1).cpu()
    methods = {"plain": parse_method("plain+invariant"), "branches": branches}
    counts = {
        name: _first_tokens(contenders, method, prompt, plan.num_seeds)
        for name, method in methods.items()
    }
    advance(f"law of question {question.question_id}")
    probs, tokens = law.topk(min(_SHOWN, len(law)))
    return {
        "question_id": question.question_id,
        "num_seeds": plan.num_seeds,
        "entropy": round(float(-(law * law.clamp_min(1e-30).log()).sum()), 4),
        "distance": {name: round(total_variation(of, law), 4) for name, of in counts.items()},
        "noise_95": round(noise_95(law, plan.num_seeds), 4),
        "likeliest": [
            {
                "law": round(float(prob), 4),
                **{name: round(of[token] / plan.num_seeds, 4) for name, of in counts.items()},
            }
            for prob, token in zip(probs, tokens.tolist(), strict=True)
        ],
    }


def _first_tokens(
    contenders: Contenders, method: Method, prompt: Sequence[int], num_seeds: int
) -> Counter[int]:
    """The first token of so many answers, each with a seed of its own."""
    client, found = contenders.client(method), Counter[int]()
    for seed in range(num_seeds):
        sampling = SamplingParams(temperature=1, seed=seed)
        with (
            client.session() as session,
            session.stream(
                tuple(prompt), sampling=sampling, max_tokens=_ROOM, speculation=method.options
            ) as stream,
        ):
            chunk = next(at for at in stream if at.token_ids)
            found[chunk.token_ids[0]] += 1
    return found

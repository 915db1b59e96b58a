"""From the outputs of an arm to its figures, in the papers' terms. Pure."""

from collections.abc import Sequence
from typing import Any

from slipstream.bench.figures import Output, count

DIGITS = 4


def expected_speedup(alpha: float, num_drafted: float, cost: float) -> float:
    """E = (1 - a^(g+1)) / ((1 - a)(g c + 1)) for chains of g tokens.

    (GliDe with a CaPE, table 1; after Leviathan et al., 2023.)

    `alpha` is the chance of a tested token to be accepted, `cost` a draft step's time over that
    of a target's.
    """
    tokens = num_drafted + 1 if alpha == 1 else (1 - alpha ** (num_drafted + 1)) / (1 - alpha)
    return tokens / (num_drafted * cost + 1)


def ms_per_token(outputs: Sequence[Output]) -> float | None:
    """Milliseconds of decoding per token after the first, which is prefill's."""
    tokens = sum(max(len(out.reply.token_ids) - 1, 0) for out in outputs)
    return 1000 * sum(out.reply.timings.decode_s for out in outputs) / tokens if tokens else None


def arm_figures(outputs: Sequence[Output], plain_ms: float | None) -> dict[str, Any]:
    """All figures of one arm; `plain_ms` is what a token of plain decoding takes.

    `alpha` is accepted over tested tokens, `acceptance` accepted ones over the drafted path,
    `cost` the time of a drafted token over that of a plain one, `rates` are tokens per second of
    decoding by output, and `by_output` has what else is told of each.
    """
    of, ms = count(outputs), ms_per_token(outputs)
    draft_ms = 1000 * sum(out.reply.timings.draft_s for out in outputs)
    alpha = _quotient(of.accepted, of.tested)
    cost = _quotient(_quotient(draft_ms, of.depth), plain_ms)
    depth = _quotient(of.depth, of.rounds)
    expected = None
    if alpha is not None and cost is not None and depth is not None:
        expected = expected_speedup(alpha, depth, cost)
    return {
        "tokens_per_s": _rounded(None if not ms else 1000 / ms),
        "tokens_per_round": _rounded(1 + (_quotient(of.accepted, of.rounds) or 0.0)),
        "alpha": _rounded(alpha),
        "acceptance": _rounded(_quotient(of.accepted, of.depth)),
        "length": _rounded(depth),
        "nodes": _rounded(_quotient(of.nodes, of.rounds)),
        "draft_ms": _rounded(_quotient(draft_ms, of.rounds)),
        "cost": _rounded(cost),
        "expected": _rounded(expected),
        "tokens": sum(len(out.reply.token_ids) for out in outputs),
        "rounds": of.rounds,
        "plain_rounds": of.plain_rounds,
        "rates": [_rounded(_rate(out)) for out in outputs],
        "by_output": _by_output(outputs),
    }


def _by_output(outputs: Sequence[Output]) -> dict[str, list[float | None]]:
    each = [count([output]) for output in outputs]
    if not any(of.rounds for of in each):
        return {}
    lengths = [_quotient(of.rounds + of.accepted, of.rounds) for of in each]
    return {
        "tokens_per_round": [_rounded(length) for length in lengths],
        "alpha": [_rounded(_quotient(of.accepted, of.tested)) for of in each],
        "acceptance": [_rounded(_quotient(of.accepted, of.depth)) for of in each],
    }


def _rate(output: Output) -> float | None:
    tokens = len(output.reply.token_ids) - 1
    return _quotient(tokens, output.reply.timings.decode_s) if tokens > 0 else None


def _quotient(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)

"""Speed and identity of methods on the same questions, in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.table import Table

from slipstream.bench.figures import (
    ByName,
    Figures,
    fixed,
    number,
    position_text,
    quotient,
    sample_differences,
    sample_figures,
    table,
    table_of,
)
from slipstream.bench.harness import Advance, Samples, TurnPlan, run_in_turn
from slipstream.bench.methods import PLAIN, Method, MethodEngines
from slipstream.bench.questions import Question
from slipstream.core.errors import PromptTooLong
from slipstream.options import option
from slipstream.text.prompts import encode_prompt


@dataclass(frozen=True, slots=True)
class SpeedPlan(TurnPlan):
    """Plan of a comparison. `methods` include plain decoding, see `with_plain`."""

    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.", least=1)
    repeats: int = option(1, "Runs over all prompts.", least=1)
    methods: tuple[Method, ...] = ()


def run_speed(plan: SpeedPlan, engines: MethodEngines, *, advance: Advance) -> Samples:
    """Return every reply of every method. Raises `InvalidRequest` before anything is measured when
    a prompt does not fit."""
    for method in plan.methods:
        engines.load(method)
    engine = engines.engine
    for question in plan.questions:
        length = len(encode_prompt(engine.text, question.turns[0]))
        limit = engine.model.context_length
        if length + plan.max_new_tokens > limit:
            raise PromptTooLong(
                f"question {question.question_id} has {length} tokens, which with"
                f" {plan.max_new_tokens} new ones exceed the context of {limit}"
            )
    sampling = plan.sampling.params()
    asks = {
        method.name: partial(
            engines.client(method).generate, sampling=sampling, speculation=method.options
        )
        for method in plan.methods
    }
    return run_in_turn(asks, plan, repeats=plan.repeats, advance=advance)


def compare(plan: SpeedPlan, samples: Samples, *, is_invariant: bool = True) -> dict[str, Any]:
    """Return by method `{"overall": R, "categories": {CATEGORY: R}, "prompts": {ID: ratio}}`; see
    `method_figures`."""
    known = {"is_greedy": plan.sampling.params().is_greedy, "is_invariant": is_invariant}
    kinds = _split(samples, lambda question: question.category)
    prompts = _split(samples, lambda question: question.question_id)
    return {
        method.name: {
            "overall": method_figures(method, samples, **known),
            "categories": {name: method_figures(method, of, **known) for name, of in kinds.items()},
            "prompts": {
                name: sample_figures(of[method.name], of[PLAIN])["ratio"]
                for name, of in prompts.items()
            },
        }
        for method in plan.methods
    }


def _split(samples: Samples, key: Callable[[Question], int | str]) -> dict[int | str, Samples]:
    """Return the replies by what their questions have in common, in order."""
    return {
        value: {
            name: [sample for sample in of if key(sample.question) == value]
            for name, of in samples.items()
        }
        for value in dict.fromkeys(key(sample.question) for sample in samples[PLAIN])
    }


def method_figures(
    method: Method, samples: Samples, *, is_greedy: bool = True, is_invariant: bool = True
) -> dict[str, Any]:
    """Return one R: speed over plain decoding, acceptance and identity of a method. Where numerics
    are invariant, identity is promised."""
    own, plain = samples[method.name], samples[PLAIN]
    timings = [sample.result.stats.timings for sample in own]
    decode_s = sum(times.decode_s for times in timings)
    figures, different = sample_figures(own, plain), sample_differences(own, plain)
    identity = _identity(method, figures, is_greedy) or ("different" if different else "identical")
    num_outputs = len({sample.question.question_id for sample in own})
    return {
        **figures,
        "draft_share": quotient(sum(times.draft_s for times in timings), decode_s),
        "verify_share": quotient(sum(times.verify_s for times in timings), decode_s),
        "outputs": num_outputs,
        "identical": None if identity == "inconclusive" else num_outputs - len(different),
        "identity": identity,
        "differences": different,
        "identity_promised": is_invariant and method.is_comparable(is_greedy=is_greedy),
    }


def _identity(method: Method, figures: Figures, is_greedy: bool) -> str | None:
    """Return why a comparison with plain decoding's tokens has no meaning; None where it has one.

    Nothing drafted is nothing shown, and where only the distribution is the same (or not even
    that), other tokens are no fault.
    """
    if method.name == PLAIN:
        return "reference"
    if method.base != PLAIN and not figures["drafted_tokens"]:
        return "inconclusive"
    return None if method.is_comparable(is_greedy=is_greedy) else "not-comparable"


def speed_table(methods: ByName) -> Table:
    """Return the figures of every method, all categories together."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "ratio": number("ratio", 2, "x"),
        "ratio decode": number("ratio_decode", 2, "x"),
        "acceptance length": number("mean_acceptance_length", 2),
        "acceptance rate": number("draft_acceptance_rate", 2),
        "drafted": lambda of: str(of["drafted_tokens"]),
        "draft share": number("draft_share", 2),
        "identical": _identity_text,
        "lowest prompt": lambda of: fixed(min(filter(None, of["prompts"].values())), 2, "x"),
    }
    rows = (([name], {**parts["overall"], **parts}) for name, parts in methods.items())
    return table_of(["method"], columns, rows)


def category_table(methods: ByName) -> Table:
    """Return ratio and acceptance length of every method (columns) in every category (rows)."""
    shown = table("ratio (acceptance length)", *methods)
    names = dict.fromkeys(name for parts in methods.values() for name in parts["categories"])
    for category in names:
        found = [parts["categories"][category] for parts in methods.values()]
        cells = [
            f"{fixed(of['ratio'], 2, 'x')} ({of['mean_acceptance_length']:.2f})" for of in found
        ]
        shown.add_row(category, *cells)
    return shown


def _identity_text(of: Figures) -> str:
    if of["identity"] in ("reference", "inconclusive"):
        return str(of["identity"])
    share = f"{of['identical']}/{of['outputs']}"
    if of["identity"] == "not-comparable":
        return f"{share}, not expected"
    return f"{share}, BROKEN PROMISE" if is_broken(of) else share


def is_broken(of: Figures) -> bool:
    """Return whether tokens are not those of plain decoding, although that is promised."""
    return bool(of["identity"] == "different" and of["identity_promised"])


def difference_lines(methods: ByName) -> list[str]:
    """Return, per method that must have the tokens of plain decoding, where it first has others."""
    return [
        f"{name}: first differences in question {position_text(parts['overall']['differences'])}"
        for name, parts in methods.items()
        if parts["overall"]["identity"] == "different"
    ]

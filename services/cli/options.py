"""The options that commands share, in groups, and what they mean to the SDK. Loads no torch."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from slipstream.core.errors import InvalidRequest
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.types import SamplingParams, Shape, StopPolicy, Verification


def _option(panel: str, text: str, *names: str) -> object:
    return typer.Option(*names, help=text, rich_help_panel=panel)


ENGINE = "Engine"
LENGTH = "Length"
SAMPLING = "Sampling"
SPECULATION = "Speculation"


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """Which models run, and how."""

    target: Annotated[
        str, _option(ENGINE, "Target model: an alias, a path or OWNER/NAME of the hub.")
    ] = "smollm2-135m"
    draft: Annotated[
        str,
        _option(ENGINE, "glide, ngram, none, vanilla:MODEL or a directory of GliDe weights."),
    ] = "glide"
    dtype: Annotated[str, _option(ENGINE, "bfloat16, float16 or float32.")] = "bfloat16"
    numerics: Annotated[
        str,
        _option(ENGINE, "invariant: the same bits whatever is drafted; fast: near-ties may turn."),
    ] = "invariant"
    threads: Annotated[int | None, _option(ENGINE, "CPU threads; default: torch's choice.")] = None
    device: Annotated[str, _option(ENGINE, "cpu, cuda or cuda:N.")] = "cpu"


@dataclass(frozen=True, slots=True)
class LengthFlags:
    """When a text ends."""

    max_new_tokens: Annotated[int, _option(LENGTH, "Most tokens to generate.")] = 128
    stop: Annotated[list[str], _option(LENGTH, "Text to stop before; repeatable.")] = field(
        default_factory=list
    )


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """The law to draw from."""

    temperature: Annotated[float, _option(SAMPLING, "0 is greedy.")] = 0.0
    top_k: Annotated[int | None, _option(SAMPLING, "Keep the K likeliest tokens.")] = None
    top_p: Annotated[float, _option(SAMPLING, "Keep the likeliest tokens up to this mass.")] = 1.0
    min_p: Annotated[
        float, _option(SAMPLING, "Keep tokens this likely relative to the likeliest.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, _option(SAMPLING, "Divides scores of tokens in prompt and output.")
    ] = 1.0
    presence_penalty: Annotated[
        float, _option(SAMPLING, "Taken from scores of tokens in the output.")
    ] = 0.0
    frequency_penalty: Annotated[float, _option(SAMPLING, "The same, once per occurrence.")] = 0.0
    logit_bias: Annotated[
        list[str], _option(SAMPLING, "ID=VALUE, added to a token's score; repeatable.")
    ] = field(default_factory=list)
    seed: Annotated[int, _option(SAMPLING, "The same seed gives the same text.")] = 0

    def params(self) -> SamplingParams:
        """Raises `InvalidRequest` for a value out of range."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(_bias(text) for text in self.logit_bias),
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class SpeculationFlags:
    """How to draft and verify; what is not given is the engine's calibrated default."""

    speculation: Annotated[
        Mode, _option(SPECULATION, "auto: while it pays; off: plain decoding; forced: always.")
    ] = Mode.AUTO
    shape: Annotated[Shape | None, _option(SPECULATION, "Form of the token tree.")] = None
    stop_policy: Annotated[
        StopPolicy | None, _option(SPECULATION, "When drafting ends within a round.")
    ] = None
    threshold: Annotated[float | None, _option(SPECULATION, "Of the stop policy.")] = None
    max_draft_tokens: Annotated[
        int | None, _option(SPECULATION, "Longest path drafted in a round.")
    ] = None
    max_nodes: Annotated[int | None, _option(SPECULATION, "Largest tree drafted.")] = None
    widths: Annotated[
        str | None, _option(SPECULATION, "Children per depth of shape product, as 4,2,1.")
    ] = None
    verification: Annotated[
        Verification | None,
        _option(SPECULATION, "exact: the tokens of plain decoding. target-init is NOT lossless."),
    ] = None
    num_roots: Annotated[int | None, _option(SPECULATION, "Roots of target-init.")] = None

    def options(self) -> SpeculationOptions:
        """Raises `InvalidRequest` for values out of range or at odds with each other."""
        return SpeculationOptions(
            mode=self.speculation,
            max_draft_tokens=self.max_draft_tokens,
            max_nodes=self.max_nodes,
            shape=self.shape,
            stop=self.stop_policy,
            threshold=self.threshold,
            widths=None if self.widths is None else _widths(self.widths),
            verification=self.verification,
            num_roots=self.num_roots,
        )


def _bias(text: str) -> tuple[int, float]:
    number, _, value = text.partition("=")
    try:
        return int(number), float(value)
    except ValueError:
        raise InvalidRequest(f"a logit bias is {text!r}, but must be ID=VALUE") from None


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise InvalidRequest(f"widths are {text!r}, but must be numbers as 4,2,1") from None

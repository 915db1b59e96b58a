"""`slipstream generate`: a prompt in, text out as it becomes final, then one line of figures."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import typer

from slipstream.cli.engine import open_client, open_engines
from slipstream.cli.flags import with_flags
from slipstream.cli.options import PlaceFlags, RequestFlags
from slipstream.cli.report import PlainComparison, result_object, stats_line
from slipstream.client import Client
from slipstream.core.errors import InvalidRequest, SlipstreamError, UnsupportedCombination
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.prompt import Prompt
from slipstream.core.request.results import Result, collected
from slipstream.options import option, required

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class PromptFlags:
    """The prompts, and how they are encoded."""

    prompts: tuple[str, ...] = required(
        "The prompt, or - to read it from standard input; several with --compare.", is_argument=True
    )
    raw: bool = option(False, "Without the model's chat template.")
    allow_special_tokens: bool = option(
        False, "With --raw: names of special tokens are these tokens, not plain text."
    )
    system: str | None = option(None, "System message before the prompt.")

    def contents(self) -> list[Prompt]:
        """Return the prompts. Raises `InvalidRequest` for one that is empty or not text."""
        if len(self.prompts) > 1 and "-" in self.prompts:
            raise InvalidRequest("- reads standard input as the only prompt, but others are given")
        texts = [_read(prompt) for prompt in self.prompts]
        if self.allow_special_tokens and not self.raw:
            raise UnsupportedCombination("--allow-special-tokens goes with --raw only")
        if self.system is None:
            return [*texts]
        if self.raw:
            raise UnsupportedCombination("--system needs the chat template that --raw leaves out")
        system = {"role": "system", "content": self.system}
        return [[system, {"role": "user", "content": text}] for text in texts]


@dataclass(frozen=True, slots=True)
class PrintFlags:
    """Contents and form of what is printed."""

    compare: bool = option(
        False, "Decode plainly too; compare tokens, and speed by the faster of two runs each."
    )
    as_json: bool = option(
        False,
        "Print a JSON object for each prompt, on a line, and nothing else.",
        names=("--json",),
    )
    quiet: bool = option(False, "Print the text alone.")
    origins: bool = option(False, "With --json: the origin of every token.")
    logprobs: int | None = option(
        None,
        "With --json: the log probability of every token, and so many of the likeliest tokens.",
        min=0,
        max=MAX_LOGPROBS,
    )

    def __post_init__(self) -> None:
        if self.quiet and self.as_json:
            raise UnsupportedCombination("--quiet prints the text alone, --json one object")
        if not self.as_json and (self.origins or self.logprobs is not None):
            raise UnsupportedCombination("--origins and --logprobs go with --json only")


@with_flags
def generate(
    flags: PromptFlags, place: PlaceFlags, request: RequestFlags, output: PrintFlags
) -> None:
    """Generate text, drafted by one model and verified by another."""
    place.check()
    # Everything that can be refused is, before a model loads.
    prompts = flags.contents()
    options = {
        **request.options(),
        "raw": flags.raw,
        "allow_special_tokens": flags.allow_special_tokens,
        "with_origins": output.origins,
        "logprobs": output.logprobs,
    }
    if output.compare:
        _compare(place, [*zip(flags.prompts, prompts, strict=True)], options, output)
        return
    if len(prompts) > 1:
        raise UnsupportedCombination(
            f"{len(prompts)} prompts are given, but only --compare takes more than one"
        )
    with closing(open_client(Client, place)) as client:
        result = _stream(client, prompts[0], options, output)
    _report(result, None, output)


def _compare(
    place: PlaceFlags,
    prompts: Sequence[tuple[str, Prompt]],
    options: dict[str, Any],
    output: PrintFlags,
) -> None:
    """Compare prompts, each behind its text, with plain decoding: the faster of two runs each."""
    plainly = options | {"speculation": SpeculationOptions(mode=Mode.OFF)}
    has_sum = len(prompts) > 1 and not (output.as_json or output.quiet)
    engines = None if place.is_remote else open_engines(place.engine)
    found: list[list[Result]] = []
    with closing(open_client(Client, place) if engines is None else Client.of(engines)) as client:
        for text, prompt in prompts:
            if has_sum:
                typer.echo(f"> {text}\n")
            client.generate(prompt, **options | {"max_tokens": _WARM_UP_TOKENS})
            runs = [(_stream(client, prompt, options, output), client.generate(prompt, **plainly))]
            runs.append((client.generate(prompt, **options), client.generate(prompt, **plainly)))
            best = [
                max(side, key=attrgetter("stats.tokens_per_s")) for side in zip(*runs, strict=True)
            ]
            found.append(best)
            _report(best[0], PlainComparison(best[:1], best[1:]), output)
            if has_sum:
                typer.echo()
    if has_sum:
        typer.echo("\n".join(PlainComparison(*zip(*found, strict=True)).sum_lines(engines)))


def _stream(client: Client, prompt: Prompt, options: dict[str, Any], output: PrintFlags) -> Result:
    chunks, shows_text = [], not output.as_json
    try:
        for chunk in client.stream(prompt, **options):
            chunks.append(chunk)
            if shows_text:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
    except SlipstreamError:
        if chunks and shows_text:
            typer.echo()  # the error is printed on a line of its own
        raise
    return collected(chunks)


def _report(result: Result, comparison: PlainComparison | None, output: PrintFlags) -> None:
    if output.as_json:
        typer.echo(json.dumps(result_object(result, comparison)))
        return
    typer.echo()
    if output.quiet:
        return
    line = stats_line(result.stats)
    if comparison is not None:
        line += ", " + comparison.line()
    typer.echo(f"\n[{line}]")


def _read(prompt: str) -> str:
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        text.encode()
    except UnicodeError as error:
        raise InvalidRequest(f"the prompt is not valid UTF-8 ({error})") from None
    if not text:
        raise InvalidRequest("the prompt is empty")
    return text

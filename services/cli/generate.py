"""`slipstream generate`: one prompt in, text out as it becomes final, then one line of figures."""

import json
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.engine import open_client, open_embedded
from slipstream.cli.flags import with_flags
from slipstream.cli.logprobs import logprob_lines
from slipstream.cli.options import LengthFlags, PlaceFlags, SamplingFlags, SpeculationFlags
from slipstream.cli.origins import Marks
from slipstream.cli.report import Comparison, comparison_line, result_object, stats_line
from slipstream.core.errors import InvalidRequest, SlipstreamError, UnsupportedCombination
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.results import collected
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.client import Client
    from slipstream.core.prompt import Prompt
    from slipstream.core.results import Result

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class PromptFlags:
    """What is said, and how it is put to the model."""

    prompt: Annotated[str, typer.Argument(help="The prompt, or - to read it from standard input.")]
    raw: Annotated[bool, typer.Option("--raw", help="Without the model's chat template.")] = False
    allow_special_tokens: Annotated[
        bool,
        typer.Option(
            "--allow-special-tokens",
            help="With --raw: names of special tokens are these tokens, not plain text.",
        ),
    ] = False
    system: Annotated[str | None, typer.Option(help="System message before the prompt.")] = None

    def content(self) -> "Prompt":
        """Raises `InvalidRequest` for a prompt that is empty or not text."""
        text = _read_stdin() if self.prompt == "-" else self.prompt
        _require_text(text)
        if self.allow_special_tokens and not self.raw:
            raise UnsupportedCombination("--allow-special-tokens goes with --raw only")
        if self.system is None:
            return text
        if self.raw:
            raise UnsupportedCombination("--system needs the chat template that --raw leaves out")
        return [{"role": "system", "content": self.system}, {"role": "user", "content": text}]


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """What is printed."""

    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too; compare tokens and speed.")
    ] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the text alone.")] = False
    origins: Annotated[
        bool, typer.Option("--origins", help="Mark every token by where it came from.")
    ] = False
    logprobs: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_LOGPROBS,
            help="Tell how likely every token was, beside so many of the likeliest.",
        ),
    ] = None

    def check(self) -> None:
        """Raises `UnsupportedCombination` for what can't be printed together."""
        if self.quiet and self.as_json:
            raise UnsupportedCombination("--quiet prints the text alone, --json one object")
        if self.quiet and self.origins:
            raise UnsupportedCombination("--quiet prints the text alone, --origins marks as well")
        if self.quiet and self.logprobs is not None:
            raise UnsupportedCombination("--quiet prints the text alone, --logprobs a table")


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the SDK takes it."""

    prompt: "Prompt"
    raw: bool
    allow_special_tokens: bool
    sampling: SamplingParams
    speculation: SpeculationOptions
    max_tokens: int
    stop: tuple[str, ...]
    with_origins: bool
    logprobs: int | None
    form: dict[str, str]

    def options(self, **changes: Any) -> dict[str, Any]:
        """Everything but the prompt, for `Client.generate` and `Client.stream`."""
        values = {
            "raw": self.raw,
            "allow_special_tokens": self.allow_special_tokens,
            "sampling": self.sampling,
            "speculation": self.speculation,
            "max_tokens": self.max_tokens,
            "stop": self.stop,
            "with_origins": self.with_origins,
            "logprobs": self.logprobs,
        }
        return values | self.form | changes


@with_flags
def generate(
    prompt: PromptFlags,
    length: LengthFlags,
    place: PlaceFlags,
    sampling: SamplingFlags,
    speculation: SpeculationFlags,
    output: OutputFlags,
) -> None:
    """Generate text, drafted by one model and verified by another."""
    output.check()
    place.check()
    # Everything that can be refused is, before a model loads.
    request = Request(
        prompt=prompt.content(),
        raw=prompt.raw,
        allow_special_tokens=prompt.allow_special_tokens,
        sampling=sampling.params(),
        speculation=speculation.options(),
        max_tokens=length.max_new_tokens,
        stop=tuple(length.stop),
        with_origins=output.origins,
        logprobs=output.logprobs,
        form=length.form(),
    )
    with closing(open_client(place)) as client:
        if output.compare:
            client.generate(request.prompt, **request.options(max_tokens=_WARM_UP_TOKENS))
        result = _stream(client, request, shows_text=not output.as_json)
        comparison = _compare(client, request, place) if output.compare else None
    _report(result, comparison, output)


def _stream(client: "Client", request: Request, *, shows_text: bool) -> "Result":
    """Generate, showing text as it becomes final."""
    chunks, marks = [], Marks(sys.stdout)
    try:
        for chunk in client.stream(request.prompt, **request.options()):
            chunks.append(chunk)
            if shows_text:
                sys.stdout.write(chunk.text)
                marks.mark(chunk.origins)
                sys.stdout.flush()
    except SlipstreamError:
        if chunks and shows_text:
            typer.echo()  # what went wrong stands on a line of its own
        raise
    if request.with_origins and shows_text:
        sys.stdout.write("\n\n")
        marks.legend()
    return collected(chunks)


def _compare(client: "Client", request: Request, place: PlaceFlags) -> Comparison:
    """Decode the request plainly: in its own numerics and, where we choose them, in the fastest."""
    plainly = SpeculationOptions(mode=Mode.OFF)
    plain = client.generate(request.prompt, **request.options(speculation=plainly))
    if place.is_remote or place.engine.numerics == "fast":
        return Comparison(plain, plain)
    with closing(open_embedded(place.engine, numerics="fast", draft="none")) as fast:
        options = request.options(speculation=plainly)
        fast.generate(request.prompt, **options | {"max_tokens": _WARM_UP_TOKENS})
        return Comparison(plain, fast.generate(request.prompt, **options))


def _report(result: "Result", comparison: Comparison | None, output: OutputFlags) -> None:
    if output.as_json:
        typer.echo(json.dumps(result_object(result, comparison)))
        return
    typer.echo()
    if output.quiet:
        return
    if result.logprobs:
        typer.echo("\n" + "\n".join(logprob_lines(result.logprobs)))
    line = stats_line(result.stats)
    if comparison is not None:
        line += ", " + comparison_line(result, comparison)
    typer.echo(f"\n[{line}]")


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the prompt on standard input is not text ({error})") from None


def _require_text(text: str) -> None:
    if not text:
        raise InvalidRequest("the prompt is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the prompt is not valid UTF-8") from None

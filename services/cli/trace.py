"""`slipstream trace`: where the time of one request went, from the files that services keep."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.flags import with_flags
from slipstream.config import traces_dir
from slipstream.core.errors import InvalidRequest

if TYPE_CHECKING:
    from slipstream.telemetry.traces import Trace

_HOW = "`slipstream up` keeps them, and so does any service with --traces file:DIR"


@dataclass(frozen=True, slots=True)
class TraceFlags:
    """Which request, and how it is shown."""

    request_id: Annotated[str | None, typer.Argument(help="As answers and logs have it.")] = None
    last: Annotated[bool, typer.Option("--last", help="The request that ended last.")] = False
    dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory of trace files.", show_default="where `slipstream up` keeps them"
        ),
    ] = None
    html: Annotated[
        Path | None, typer.Option(help="Write a page to this file, in place of the terminal.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print spans and summary as JSON.")] = False

    def check(self) -> None:
        """Raise `InvalidRequest` unless one request is meant."""
        if self.last and self.request_id is not None:
            raise InvalidRequest(f"both request {self.request_id} and --last are asked for")
        if not self.last and self.request_id is None:
            raise InvalidRequest("say which request: its id, or --last")


@with_flags
def trace(flags: TraceFlags) -> None:
    """Show where the time of a request went, and what speculation did for it."""
    flags.check()
    found = _found(flags)
    if flags.html is not None:
        from slipstream.cli.trace_page import page

        _write(flags.html, page(found))
        typer.echo(f"written to {flags.html}", err=flags.json)
    if flags.json:
        typer.echo(json.dumps(_json_values(found), indent=2, allow_nan=False))
    elif flags.html is None:
        from slipstream.cli.trace_text import show, trace_console

        show(found, trace_console())


def _found(flags: TraceFlags) -> "Trace":
    from slipstream.telemetry.traces import last_trace, read_spans, trace_of

    directory, wanted = flags.dir or traces_dir(), flags.request_id
    if not directory.is_dir():
        raise InvalidRequest(f"there are no traces at {directory}: {_HOW}")
    spans = read_spans(directory)
    found = last_trace(spans) if wanted is None else trace_of(spans, wanted)
    if found is not None:
        return found
    if wanted is None:
        raise InvalidRequest(f"no request has left a trace in {directory} yet: {_HOW}")
    raise InvalidRequest(
        f"{directory} has no trace of request {wanted!r}: it was not sampled, has not ended, or"
        f" its trace is gone with older ones; {_HOW}"
    )


def _json_values(trace: "Trace") -> dict[str, Any]:
    from slipstream.cli.trace_summary import summary

    found = summary(trace)
    values: dict[str, Any] = _plain(
        {
            "trace_id": trace.request.trace_id,
            "request_span": trace.request.span_id,
            "orphans": [span.span_id for span in trace.orphans()],
            **asdict(found),
            "facts": dict(found.facts),
            "spans": [asdict(span) for span in trace.spans],
        }
    )
    return values


def _plain(value: Any) -> Any:
    """Return the value with text for what JSON does not have."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case bytes():
            return value.hex()
        case float() if not math.isfinite(value):
            return str(value)
    return value


def _write(path: Path, text: str) -> None:
    """Write the whole file or nothing."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InvalidRequest(f"{path} can't be written ({error.strerror})") from None

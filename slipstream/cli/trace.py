"""`slipstream trace`: where the time of one request went, from the files that services keep."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slipstream.cli.flags import with_flags
from slipstream.config import traces_dir
from slipstream.core.errors import InvalidRequest
from slipstream.files import write_whole
from slipstream.options import option

if TYPE_CHECKING:
    from slipstream.telemetry.traces import Trace

_HOW = "`slipstream up` keeps them, and so does any service with --traces file:DIR"


@dataclass(frozen=True, slots=True)
class TraceFlags:
    """The request to show, and how it is shown."""

    request_id: str | None = option(
        None, "ID of the request, which answers and logs have.", is_argument=True
    )
    last: bool = option(False, "The request that ended last.")
    dir: Path | None = option(
        None, "Directory of trace files.", show_default="where `slipstream up` keeps them"
    )
    html: Path | None = option(None, "Write a page to this file, in place of the terminal.")

    def __post_init__(self) -> None:
        if self.last and self.request_id is not None:
            raise InvalidRequest(f"both request {self.request_id} and --last are asked for")
        if not self.last and self.request_id is None:
            raise InvalidRequest("say which request: its id, or --last")


@with_flags
def trace(flags: TraceFlags) -> None:
    """Show where the time of a request went, and what speculation did for it."""
    from slipstream.cli.trace_view import page, summary

    found = _found(flags)
    if flags.html is not None:
        write_whole(flags.html, page(found).encode(errors="replace"), mode=0o644)
        typer.echo(f"written to {flags.html}")
        return
    typer.echo("\n".join(summary(found).lines()))


def _found(flags: TraceFlags) -> "Trace":
    from slipstream.telemetry.traces import find_trace, read_spans

    directory, wanted = flags.dir or traces_dir(), flags.request_id
    if not directory.is_dir():
        raise InvalidRequest(f"there are no traces at {directory}: {_HOW}")
    found = find_trace(read_spans(directory), wanted)
    if found is not None:
        return found
    if wanted is None:
        raise InvalidRequest(f"no request has left a trace in {directory} yet: {_HOW}")
    raise InvalidRequest(
        f"{directory} has no trace of request {wanted!r}: it was not sampled, has not ended, or"
        f" its trace is gone with older ones; {_HOW}"
    )

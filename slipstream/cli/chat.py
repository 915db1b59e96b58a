"""`slipstream chat`: a conversation that keeps what both models have read of it."""

import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from slipstream.cli.engine import open_client
from slipstream.cli.flags import with_flags
from slipstream.cli.options import PlaceFlags, RequestFlags
from slipstream.cli.report import stats_line
from slipstream.client import Client
from slipstream.core.errors import InvalidRequest
from slipstream.core.request.prompt import Message, Prompt
from slipstream.core.request.results import Chunk

HELP = "/reset begins a new conversation, /quit ends."
System = Annotated[str | None, typer.Option(help="System message of the conversation.")]


@with_flags
def chat(*, system: System = None, place: PlaceFlags, request: RequestFlags) -> None:
    """Talk with the model; every turn reads only what is new."""
    place.check()
    options = request.options()
    console = Console(file=sys.stderr, highlight=False)
    with closing(open_client(Client, place)) as client:
        console.print(HELP, style="dim")
        while _converse(client, system, options, console):
            console.print("A new conversation.", style="dim")


def _converse(
    client: Client, system: str | None, options: dict[str, Any], console: Console
) -> bool:
    """Hold one conversation; return whether another is to follow."""
    first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    with client.session() as session:
        for text in _lines(console):
            if text in {"/quit", "/exit"}:
                return False
            if text == "/reset":
                return True
            if text.startswith("/"):
                console.print(f"There is no {text.split()[0]}. {HELP}", style="dim")
                continue
            try:
                turn: Prompt = [*first, {"role": "user", "content": text}] if first else text
                chunks = session.stream(turn, **options)
            except InvalidRequest as error:
                # The conversation goes on without this turn.
                console.print(f"error: {error}", markup=False)
                continue
            first = []
            # The session is free for the next turn, whatever ends this one.
            with closing(cast("Generator[Chunk]", chunks)):
                _reply(chunks, console)
    return False


def _reply(chunks: Iterator[Chunk], console: Console) -> None:
    stats = None
    try:
        for chunk in chunks:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            stats = chunk.stats
    except KeyboardInterrupt:
        console.print(" (interrupted)", style="dim")
    typer.echo()
    if stats is not None:
        console.print(f"[{stats_line(stats)}]", style="dim", markup=False)


def _lines(console: Console) -> Iterator[str]:
    while True:
        try:
            console.print("> ", end="")
            text = input().strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        except UnicodeDecodeError:
            console.print("error: that line is not text")
            continue
        if text:
            yield text

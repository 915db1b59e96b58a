"""`slipstream chat`: a conversation that keeps what both models have read of it."""

import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from slipstream.cli.engine import open_client
from slipstream.cli.flags import with_flags
from slipstream.cli.options import LengthFlags, PlaceFlags, SamplingFlags, SpeculationFlags
from slipstream.cli.report import stats_line
from slipstream.core.errors import InvalidRequest

if TYPE_CHECKING:
    from slipstream.client import Client
    from slipstream.core.prompt import Prompt
    from slipstream.core.results import Chunk

HELP = "/reset begins a new conversation, /quit ends."


@dataclass(frozen=True, slots=True)
class ChatFlags:
    """How the conversation begins."""

    system: Annotated[str | None, typer.Option(help="System message of the conversation.")] = None

    def first(self, text: str) -> "Prompt":
        """The first turn, with the system message before it."""
        if self.system is None:
            return text
        return [{"role": "system", "content": self.system}, {"role": "user", "content": text}]


@with_flags
def chat(
    conversation: ChatFlags,
    length: LengthFlags,
    place: PlaceFlags,
    sampling: SamplingFlags,
    speculation: SpeculationFlags,
) -> None:
    """Talk with the model; every turn reads only what is new."""
    place.check()
    options = {
        "sampling": sampling.params(),
        "speculation": speculation.options(),
        "max_tokens": length.max_new_tokens,
        "stop": tuple(length.stop),
        **length.form(),  # of every turn
    }
    console = Console(file=sys.stderr, highlight=False)
    with closing(open_client(place)) as client:
        console.print(HELP, style="dim")
        while _converse(client, conversation, options, console):
            console.print("A new conversation.", style="dim")


def _converse(
    client: "Client", conversation: ChatFlags, options: dict[str, Any], console: Console
) -> bool:
    """One conversation; whether another is to follow."""
    is_first = True
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
                chunks = session.stream(conversation.first(text) if is_first else text, **options)
            except InvalidRequest as error:
                # This turn can't be answered; the conversation goes on without it.
                console.print(f"error: {error}", markup=False)
                continue
            is_first = False
            # The session is free for the next turn, whatever ends this one.
            with closing(cast("Generator[Chunk]", chunks)):
                _reply(chunks, console)
    return False


def _reply(chunks: "Iterator[Chunk]", console: Console) -> None:
    """Print a reply as it comes, to its end or to the interruption."""
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
    """What the user types, until the input ends."""
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

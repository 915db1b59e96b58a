"""What a seat and those who ask it tell each other: one JSON object a line. Knows no system.

A seat is a process in which arms of one system answer. First it is told its settings, and says that
it is ready; then it answers lines, each with one. An arm that fails leaves the others their seat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Prompts = Sequence[Sequence[int]]
Settings = Mapping[str, Any]
"""What a seat loads, as JSON knows it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one prompt.

    `token_ids` is None where only text came back; `num_forwards` counts the target's, the prompt's
    own included, None where it can't be seen.
    """

    num_tokens: int
    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    num_forwards: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a seat says of itself: its processes, versions, and what it was set to."""

    pids: tuple[int, ...]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]


class Answerer(Protocol):
    """What sits in a seat."""

    def load(self, arm: str) -> None:
        """Make ready for an arm; raises what keeps it from answering."""
        ...

    def answer(self, arm: str, prompts: Prompts, max_new_tokens: int) -> list[Answer]:
        """Greedy answers to prompts that came together, in their order."""
        ...

    def facts(self) -> Facts:
        """See `Facts`."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


def facts_of(values: Mapping[str, Any]) -> Facts:
    """Out of what came over the wire."""
    return Facts(tuple(values["pids"]), values["versions"], values["settings"])


def answer_of(values: Mapping[str, Any]) -> Answer:
    """Out of what came over the wire."""
    token_ids = values["token_ids"]
    return Answer(
        values["num_tokens"],
        None if token_ids is None else tuple(token_ids),
        values["text"],
        values["num_forwards"],
    )

"""Engine under test: what runs in a process of its own, and the JSON lines that it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Prompts = Sequence[Sequence[int]]
Settings = Mapping[str, Any]
"""Settings of an engine, as JSON values."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to one prompt.

    `token_ids` is None where only text came back; `num_forwards` counts the target's, the prompt's
    own included, None where it can't be seen.
    """

    num_tokens: int
    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    num_forwards: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Processes of an engine, its versions, and what it was set to."""

    pids: tuple[int, ...]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]


class EngineUnderTest(Protocol):
    """System that answers, in one or several configurations."""

    def load(self, config: str) -> None:
        """Prepare a configuration; raise what keeps it from answering."""

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[Answer]:
        """Return greedy answers to prompts that came together, in their order."""
        ...

    def facts(self) -> ProcessFacts:
        """See `ProcessFacts`."""
        ...

    def close(self) -> None:
        """End what was started."""


def facts_of(values: Mapping[str, Any]) -> ProcessFacts:
    """Read facts from JSON values."""
    return ProcessFacts(tuple(values["pids"]), values["versions"], values["settings"])


def answer_of(values: Mapping[str, Any]) -> Answer:
    """Read an answer from JSON values."""
    token_ids = values["token_ids"]
    return Answer(**{**values, "token_ids": None if token_ids is None else tuple(token_ids)})

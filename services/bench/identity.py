"""Positions where outputs leave the tokens that are expected of them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Return the index of the first token that differs or is missing on one side, if any."""
    if tuple(tokens) == tuple(reference):
        return None
    pairs = enumerate(zip(tokens, reference, strict=False))
    shorter = min(len(tokens), len(reference))
    return next((index for index, (a, b) in pairs if a != b), shorter)


def differences(
    outputs: Iterable[tuple[Key, Sequence[int]]], expected: Mapping[Key, Sequence[int]]
) -> dict[Key, int]:
    """Return the position where each output leaves what is expected; the earliest of repeats."""
    found: dict[Key, int] = {}
    for key, tokens in outputs:
        at = first_difference(tokens, expected[key])
        if at is not None:
            found[key] = min(at, found.get(key, at))
    return found


def positions(of: Mapping[int | str, int]) -> list[dict[str, int | str]]:
    """Return differences as a file holds them."""
    return [{"question_id": name, "position": at} for name, at in of.items()]


def position_text(of: Iterable[Mapping[str, int | str]]) -> str:
    """Return the differences of a file in words."""
    return "; ".join(f"{at['question_id']} at token {at['position']}" for at in of)

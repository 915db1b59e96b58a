"""Prompts in Spec-Bench's format, one JSON object a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

from slipstream.core.errors import InvalidRequest, check
from slipstream.files import json_lines, read_text


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation to run: the user's texts, turn by turn."""

    question_id: int | str
    category: str
    turns: tuple[str, ...]


def read_questions(path: Path) -> tuple[Question, ...]:
    """Read every question of a file. Raises `InvalidRequest` naming the first line that is none."""
    questions: dict[int | str, Question] = {}
    for place, item in json_lines(read_text(path, pipe=True).splitlines(), str(path)):
        question = _question(item, place)
        if question.question_id in questions:
            raise InvalidRequest(f"{place} has question_id {question.question_id!r} a second time")
        questions[question.question_id] = question
    if not questions:
        raise InvalidRequest(f"{path} holds no prompts")
    return tuple(questions.values())


def select(questions: Sequence[Question], limit: int | None) -> tuple[Question, ...]:
    """Select at most `limit` questions, evenly from all categories, in order; None means all."""
    check(limit is None or limit >= 1, "limit", limit, "at least 1")
    chosen = {question.question_id for question in in_turn(questions)[:limit]}
    return tuple(question for question in questions if question.question_id in chosen)


def random_questions(count: int, num_chars: int) -> tuple[Question, ...]:
    """Return texts of random letters, always the same ones."""
    draw = Random(0)
    texts = ("".join(draw.choices(ascii_lowercase, k=num_chars)) for _ in range(count))
    return tuple(Question(number, "random", (text,)) for number, text in enumerate(texts))


def in_turn(questions: Sequence[Question]) -> tuple[Question, ...]:
    """Return one of each category after the other: any first part of them is a fair sample."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.category, []).append(question)
    mixed = chain.from_iterable(zip_longest(*groups.values()))
    return tuple(question for question in mixed if question is not None)


def _question(item: Any, place: str) -> Question:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{place} is not a JSON object")
    question_id, category, turns = (item.get(k) for k in ("question_id", "category", "turns"))
    if isinstance(question_id, bool) or not isinstance(question_id, int | str):
        raise InvalidRequest(f"{place} has question_id {question_id!r}, not a number or text")
    if not isinstance(category, str) or not category:
        raise InvalidRequest(f"{place} has category {category!r}, not text")
    texts = turns if isinstance(turns, list) else []
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidRequest(f"{place} must have turns, a list of texts that are not empty")
    return Question(question_id, category, tuple(texts))

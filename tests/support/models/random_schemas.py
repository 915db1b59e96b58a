"""Random JSON schemas, drawn by seed alone: every text that follows one comes to an end."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

NAMES = (
    *("name", "title", "kind", "color", "size", "price", "count", "year", "city", "tags"),
    *("is_open", "rating", "owner", "notes", "code", "parts", "address", "score", "unit", "level"),
)
TOPICS = (
    *("a famous person", "a city", "a book", "a car", "a recipe", "a planet", "a song", "a bird"),
    *("a football club", "a computer", "a river", "a house for sale", "a museum", "a dog"),
)
_WORDS = ("red", "green", "blue", "small", "large", "north", "south", "open", "closed", "other")
_PATTERNS = (
    (r"^[A-Z][a-z]{2,8}$", 9),
    (r"^[0-9]{3}-[0-9]{4}$", 8),
    (r"^(mon|tues|wednes|thurs|fri)day$", 9),
    (r"^[a-f0-9]{6}$", 6),
)
_MAX_DEPTH = 3
_BYTES_OF_CHAR = 4


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """A schema, what a text about it is to describe, and the bytes of its longest text.
    A token has a byte at least, so that a request for as many tokens and one more always ends by
    itself."""

    schema: Schema
    topic: str
    longest: int

    @property
    def prompt(self) -> str:
        return f"Describe {self.topic} in JSON."


def draw_schemas(count: int, seed: int) -> tuple[DrawnTokens, ...]:
    """The same for the same seed; a longer list begins with a shorter one."""
    rng, drawn = random.Random(seed), []
    for _ in range(count):
        schema, longest = _object(rng, 1)
        drawn.append(DrawnTokens(schema, rng.choice(TOPICS), longest))
    return tuple(drawn)


Made = tuple[Schema, int]
"""A schema, and the bytes of the longest text that follows it."""


def _object(rng: random.Random, depth: int) -> Made:
    names = rng.sample(NAMES, rng.randint(1, 4 if depth == 1 else 2))
    made = {name: _value(rng, depth + 1) for name in names}
    required = [name for name in names if rng.random() < 0.7]
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in made.items()},
        "required": required,
        "additionalProperties": False,
    }
    parts = sum(len(name) + len('"":,') + longest for name, (_, longest) in made.items())
    return schema, parts + len("{}")


def _array(rng: random.Random, depth: int) -> Made:
    items, longest = _value(rng, depth + 1)
    least, most = rng.randint(0, 2), rng.randint(2, 3)
    schema = {"type": "array", "items": items, "minItems": least, "maxItems": most}
    return schema, most * (longest + len(",")) + len("[]")


def _any_of(rng: random.Random, depth: int) -> Made:
    # Of kinds that differ, as a text could be two values of one kind at once.
    options = [make(rng) for make in rng.sample([_integer, _boolean, _null, _pattern], 2)]
    return {"anyOf": [schema for schema, _ in options]}, max(longest for _, longest in options)


def _value(rng: random.Random, depth: int) -> Made:
    if depth < _MAX_DEPTH and rng.random() < 0.35:
        return rng.choice([_object, _array, _any_of])(rng, depth)
    return rng.choice(_PLAIN)(rng)


def _string(rng: random.Random) -> Made:
    most = rng.randint(4, 16)
    schema = {"type": "string", "maxLength": most}
    if rng.random() < 0.5:
        schema["minLength"] = rng.randint(1, 3)
    return schema, _BYTES_OF_CHAR * most + len('""')


def _pattern(rng: random.Random) -> Made:
    pattern, longest = rng.choice(_PATTERNS)
    return {"type": "string", "pattern": pattern}, longest + len('""')


def _enum(rng: random.Random) -> Made:
    values: list[Any] = list(rng.sample(_WORDS, rng.randint(2, 5)))
    if rng.random() < 0.3:
        values += [rng.randint(0, 99), None]
    return {"enum": values}, max(len(str(value)) for value in values) + len('""')


def _integer(rng: random.Random) -> Made:
    least = rng.randint(-50, 500)
    most = least + rng.randint(0, 2000)
    return {"type": "integer", "minimum": least, "maximum": most}, len("-2500")


def _number(rng: random.Random) -> Made:
    # Without a step, there is no end to the digits of a number.
    step, least = rng.choice([0.5, 0.25]), rng.randint(0, 20)
    most = least + rng.randint(1, 100)
    schema = {"type": "number", "minimum": least, "maximum": most, "multipleOf": step}
    return schema, len("-120.250")


def _boolean(rng: random.Random) -> Made:
    return {"type": "boolean"}, len("false")


def _null(rng: random.Random) -> Made:
    return {"type": "null"}, len("null")


def _const(rng: random.Random) -> Made:
    value = rng.choice([rng.choice(_WORDS), rng.randint(0, 999), True, "as of today"])
    return {"const": value}, len(str(value)) + len('""')


_PLAIN: tuple[Callable[[random.Random], Made], ...] = (
    *(_string, _string, _pattern, _enum, _integer, _integer, _number, _boolean, _null, _const),
)

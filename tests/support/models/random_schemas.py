"""Random JSON schemas, drawn by seed alone: every text that follows one comes to an end."""

import random
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
Made = tuple[Schema, int]
"""A schema, and the bytes of the longest text that follows it."""
NAMES = (
    *("name", "title", "kind", "color", "size", "price", "count", "year", "city", "tags"),
    *("is_open", "rating", "owner", "notes", "code", "parts", "address", "score", "unit", "level"),
)
_MAX_DEPTH = 3
_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}
_PATTERN: Made = ({**_STRING, "pattern": r"^(mon|tues|wednes|thurs|fri)day$"}, len('"wednesday"'))
_WHOLE: Made = ({**_INTEGER, "minimum": -50, "maximum": 2000}, len("2000"))
_BOOLEAN: Made = ({"type": "boolean"}, len("false"))
_NULL: Made = ({"type": "null"}, len("null"))
_PLAIN: tuple[Made, ...] = (
    *(_PATTERN, _WHOLE, _BOOLEAN, _NULL),
    ({**_STRING, "maxLength": 16}, 4 * 16 + 2),  # characters of four bytes
    ({**_STRING, "minLength": 2, "maxLength": 5}, 4 * 5 + 2),
    ({**_STRING, "pattern": r"^[A-Z][a-z]{2,8}$"}, len('"Abcdefghi"')),
    ({**_STRING, "pattern": r"^[0-9]{3}-[0-9]{4}$"}, len('"123-4567"')),
    ({**_INTEGER, "minimum": 480, "maximum": 520}, len("520")),
    # Without a step, there is no end to the digits of a number.
    ({"type": "number", "minimum": 3, "maximum": 90, "multipleOf": 0.25}, len("90.250")),
    ({"enum": ["red", "green", "north"]}, len('"green"')),
    ({"enum": ["small", 17, None]}, len('"small"')),
    ({"const": "as of today"}, len('"as of today"')),
    ({"const": 713}, len("713")),
)


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """A schema, and the bytes of its longest text.
    A token has a byte at least, so that a request for as many tokens and one more always ends by
    itself."""

    schema: Schema
    longest: int


def draw_schemas(count: int, seed: int) -> tuple[DrawnTokens, ...]:
    """Return the same schemas for the same seed; a longer list begins with a shorter one."""
    rng, drawn = random.Random(seed), []
    for _ in range(count):
        schema, longest = _object(rng, 1)
        drawn.append(DrawnTokens(schema, longest))
    return tuple(drawn)


def _object(rng: random.Random, depth: int) -> Made:
    names = rng.sample(NAMES, rng.randint(1, 4 if depth == 1 else 2))
    made = {name: _value(rng, depth + 1) for name in names}
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in made.items()},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }
    parts = sum(len(name) + len('"":,') + longest for name, (_, longest) in made.items())
    return schema, parts + len("{}")


def _array(rng: random.Random, depth: int) -> Made:
    items, longest = _value(rng, depth + 1)
    least, most = rng.randint(0, 2), rng.randint(2, 3)
    schema = {"type": "array", "items": items, "minItems": least, "maxItems": most}
    return schema, most * (longest + len(",")) + len("[]")


def _any_of(rng: random.Random, _: int) -> Made:
    """Two of kinds that differ, as a text could be two values of one kind at once."""
    options = rng.sample([_WHOLE, _BOOLEAN, _NULL, _PATTERN], 2)
    return {"anyOf": [schema for schema, _ in options]}, max(longest for _, longest in options)


def _value(rng: random.Random, depth: int) -> Made:
    if depth < _MAX_DEPTH and rng.random() < 0.35:
        return rng.choice([_object, _array, _any_of])(rng, depth)
    return rng.choice(_PLAIN)

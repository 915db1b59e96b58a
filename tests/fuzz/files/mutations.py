"""Ways to break a file that keep its structure: bytes, JSON, lines of JSON, and TOML."""

import json
import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS = (0, 1, -1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30, -(2**63))
WORDS = (
    *("", " ", "x", "auto", "none", "*", "..", "~no-such-user/x", "/dev/zero", "-x", "a,b", "::"),
    *("\x00", "a\nFORGED", "\ud800", "\u202e\u2066", "\ufeff", "é", "🙂" * 9, "a" * 5000, "0x10"),
    *("1e999", "nan", "-inf", "${HOME}", "{{ 1/0 }}", "<|end|>", "[" * 3000, "\x1b[2J", "%s%n"),
)
VALUES = (
    *(None, True, False, 0.5, 1e308, 5e-324, float("nan"), float("inf"), [], {}, [[]], [None]),
    *({"": {}}, ["x"] * 300, [0] * 300, {"x": "y"}, *NUMBERS, *WORDS),
)
_DEPTHS = (5, 60, 500, 1100, 30_000)
_MAX_BYTES = 1 << 20


def value(random: Random) -> Any:
    """Return a value that a field does not expect, seldom a deep one."""
    found: Any = deepcopy(random.choice(VALUES))
    for _ in range(random.choice((5, 70)) if random.random() < 0.03 else 0):
        found = [found] if random.random() < 0.5 else {"x": found}
    return found


def some_bytes(random: Random, data: bytes) -> bytes:
    """Break bytes wherever they are: changed, cut, repeated, moved, encoded anew."""
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        end = min(at + random.choice((1, 1, 4, 30, 500)), len(data))
        data = random.choice(_EDITS)(random, data, at, end)[:_MAX_BYTES]
    return data


def _packed(random: Random) -> bytes:
    layout, bits = random.choice((("<I", 32), ("<Q", 64)))
    return struct.pack(layout, random.choice(NUMBERS) % 2**bits)


def _encoded(random: Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(random.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7")), "replace")


_EDITS: tuple[Callable[[Random, bytes, int, int], bytes], ...] = (
    lambda random, data, at, end: data[:at] + random.randbytes(end - at) + data[end:],
    lambda random, data, at, end: data[:at] + data[end:],
    lambda random, data, at, end: data[:at],
    lambda random, data, at, end: data[at:],
    lambda random, data, at, end: data[:end] + data[at:],
    lambda random, data, at, end: data[:at] + data[at:end] * random.choice((2, 50)) + data[end:],
    lambda random, data, at, end: data[:at] + _packed(random) + data[at + 8 :],
    lambda random, data, at, end: data[:at] + bytes(random.choice((1, 64, 5000))) + data[at:],
    lambda random, data, at, end: data[:at] + b"\xff\xfe\xed\xa0\x80" + data[end:],
    lambda random, data, at, end: data[:at] + random.choice((b"[", b"{", b'"')) + data[at:],
    lambda random, data, at, end: data[:at] + random.choice((b"\r", b"\n", b"\0")) + data[at:],
    lambda random, data, at, end: data.swapcase(),
    lambda random, data, at, end: _encoded(random, data),
)


def places(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside a value of JSON."""
    yield path
    if isinstance(values, dict | list):
        for key, inner in values.items() if isinstance(values, dict) else enumerate(values):
            yield from places(inner, (*path, key))


def changed(random: Random, values: Any) -> Any:
    """Return the value of JSON with one of its parts changed, left out, renamed or added."""
    *path, last = random.choice([path for path in places(values) if path] or [("",)])
    owner = values
    for key in path:
        owner = owner[key]
    if not isinstance(owner, dict | list) or not owner or random.random() < 0.01:
        return value(random)
    choice = random.random()
    if choice < 0.6:
        owner[last] = _near(random, owner[last])
    elif choice < 0.75:
        del owner[last]
    elif isinstance(owner, dict):
        odd = value(random)
        owner[odd if isinstance(odd, str) else str(odd)[:100]] = owner[last]
    else:
        owner.extend(owner[-1:] * random.choice((1, 300)))
    return values


def _near(random: Random, found: Any) -> Any:
    """Return another value; for a number often one beside it, so that it passes the next check."""
    if isinstance(found, int | float) and not isinstance(found, bool) and random.random() < 0.5:
        return random.choice((-found, found + 1, found - 1, found * 2, found / 2))
    return value(random)


def json_values(random: Random, data: bytes, change: Any = changed) -> bytes:
    """Break a file of JSON: its values, seldom its spelling."""
    values = json.loads(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        values = change(random, values)
    text = json.dumps(values, ensure_ascii=random.random() < 0.9)
    found = text.encode("utf-8", "surrogatepass")
    return spelled(random, found) if random.random() < 0.2 else found


def spelled(random: Random, data: bytes) -> bytes:
    """Break the spelling of JSON: depth, numbers, keys that stand twice, bytes."""
    depth = random.choice(_DEPTHS)
    at = data.find(b":", random.randrange(len(data) or 1)) + 1
    odd = random.choice(
        (
            b"[" * depth + b"]" * depth,
            b'{"x":' * depth + b"0" + b"}" * depth,
            b"1" * random.choice((20, 400, 5000)) + random.choice((b"", b"e9", b".5", b"e999")),
            b'{"x":1,"x":2}',
            rb'"\ud800\u0000"',
            b"NaN",
            b"-Infinity",
        )
    )
    if random.random() < 0.5:
        return data[:at] + odd + (b"," if at else b"") + data[at:]
    return some_bytes(random, data)


def json_lines(random: Random, data: bytes) -> bytes:
    """Break lines of JSON: one of them, or their number, order and ends."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    choice = random.random()
    if choice < 0.7 and lines[at].strip():
        lines[at] = json_values(random, lines[at])
    elif choice < 0.8:
        lines.insert(at, lines[at])
    elif choice < 0.9:
        lines[at] = random.choice((b"", b"null", b"[]", b"0", b'"x"', b"{}", b"\xff", b"\0"))
    else:
        return some_bytes(random, data)
    return random.choice((b"\n", b"\n", b"\n", b"\r\n")).join(lines)


_TOML = (
    *("", "nan", "-inf", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "0xffff", "1e400"),
    *("[[[]]]", "{ x = 1 }", "'''\n'''", "[ 1, 'x' ]", "9" * 400, "9" * 5000, "true", "-1", "1"),
    *("99999999999999999999", "1.5", "0", '"\\u0000"', '"\\uD800"', '"a\\nFORGED"', '""', "''"),
    *("[" * 3000 + "]" * 3000, "{x=" * 1500 + "1" + "}" * 1500, '"' + "a" * 5000 + '"', "0o17"),
)


def toml(random: Random, data: bytes) -> bytes:
    """Break a file of TOML, or of names and values: values, names, tables, bytes."""
    lines = data.decode().split("\n")
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(lines))
        name, is_pair, _ = lines[at].partition("=")
        choice = random.random()
        if is_pair and choice < 0.6:
            odd = random.choice(_TOML) if random.random() < 0.6 else json.dumps(value(random))
            lines[at] = f"{name}= {odd}"
        elif choice < 0.75:
            lines.insert(
                at, random.choice((lines[at], "x = 1", "[x]", "[[x]]", "a." * 900 + "b=1"))
            )
        elif choice < 0.85:
            lines[at] = f"{random.choice(WORDS)!r}{lines[at][len(name) :]}"
        elif choice < 0.9:
            random.shuffle(lines)
    found = "\n".join(lines).encode("utf-8", "surrogatepass")
    return some_bytes(random, found) if random.random() < 0.15 else found

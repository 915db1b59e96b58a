"""Kinds of files whose reader is broken on purpose, each in another way; loaded in no time."""

import os

from fuzz.files.kinds import Kind
from slipstream.core.errors import InvalidRequest


def burn(path):
    while True:
        pass


def refuse(path):
    raise InvalidRequest("")


def broken(name, load):
    return Kind(name, "file", lambda: [b"intact"], lambda random, data: b"Broken" * 8, load)


def on_broken(act):
    """Return what loads an intact file, and does `act` over any other."""
    return lambda path: act(path) if b"B" in path.read_bytes() else None


KINDS = (
    broken("ends its process", on_broken(lambda path: os.abort())),
    broken("raises", on_broken(lambda path: {}["nothing"])),
    broken("takes memory", on_broken(lambda path: bytearray(1 << 30))),
    broken("has no end", on_broken(burn)),
    broken("refuses without a word", on_broken(refuse)),
)

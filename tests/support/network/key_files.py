"""Files of keys for tests: each key's token is known."""

from hashlib import sha256
from pathlib import Path
from typing import Any


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def key(name: str, token: str, **values: Any) -> str:
    lines = [f"{name} = {value}" for name, value in values.items()]
    return "\n".join([f"[keys.{name}]", f'sha256 = "{digest(token)}"', *lines, ""])


def write_keys(path: Path, *keys: str) -> Path:
    """A file of these keys, put in place at once."""
    written = path.with_suffix(".new")
    written.write_text("\n".join(keys) or "[keys]\n")
    written.chmod(0o600)
    return written.replace(path)

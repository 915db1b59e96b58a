"""Lock files as packages with their versions and hashes, and with the hashes of other wheels."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

LOCKS = Path(__file__).resolve().parent.parent.parent.parent / "locks"
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Pin:
    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        """The one version that the lock takes; a `ValueError` where there are more."""
        (only,) = self.requirement.specifier
        if only.operator != "==" or "*" in only.version:
            raise ValueError(f"{self.requirement} is no single version")
        return only.version


def names() -> list[str]:
    return sorted(path.stem for path in LOCKS.glob("*.lock"))


def read(name: str) -> dict[str, Pin]:
    """The packages of a lock by their names. A `ValueError` where one stands there twice."""
    found = [_pin(line) for line in _lines((LOCKS / f"{name}.lock").read_text())]
    pins = {pin.name: pin for pin in found}
    if len(pins) != len(found):
        raise ValueError(f"{name}.lock has a package twice")
    return pins


def rehashed(text: str, wheels: Iterable[Path]) -> str:
    """A lock whose packages have the hashes of these wheels, for those that there are."""
    digests = {
        parse_wheel_filename(at.name)[0]: hashlib.sha256(at.read_bytes()).hexdigest()
        for at in wheels
    }
    lines = []
    for line in _lines(text):
        pin = _pin(line)
        hashes = (digests[pin.name],) if pin.name in digests else pin.hashes
        lines.append(" ".join([str(pin.requirement), *(f"--hash=sha256:{at}" for at in hashes)]))
    return "\n".join(lines) + "\n"


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def _pin(line: str) -> Pin:
    first = line.partition("--hash")[0].strip()
    return Pin(Requirement(first), tuple(_HASH.findall(line)))

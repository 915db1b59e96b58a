"""Lock files as packages with their versions and hashes, and what installed packages need."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    lines = (LOCKS / f"{name}.lock").read_text().replace("\\\n", " ").splitlines()
    found = [
        Pin(Requirement(line.partition("--hash")[0].strip()), tuple(_HASH.findall(line)))
        for line in lines
        if line.strip() and not line.startswith("#")
    ]
    pins = {pin.name: pin for pin in found}
    if len(pins) != len(found):
        raise ValueError(f"{name}.lock has a package twice")
    return pins


@cache
def needed(name: str) -> set[str]:
    asked = [Requirement(line) for line in distribution(name).requires or ()]
    here = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    return {canonicalize_name(each.name) for each in here}


def closure(name: str) -> set[str]:
    found: set[str] = set()
    left = {canonicalize_name(name)}
    while left:
        found |= left
        left = {other for each in left for other in needed(each)} - found
    return found

"""Wheels made again out of what is installed here, so that pip can install it elsewhere offline."""

import shutil
import zipfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_DROPPED = {"INSTALLER", "REQUESTED", "direct_url.json"}


def pack(names: Iterable[str], folder: Path) -> Path:
    """A wheel for each of these installed packages, in a new folder."""
    folder.mkdir()
    for name in names:
        _pack(distribution(name), folder)
    return folder


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


def _pack(found: Distribution, folder: Path) -> None:
    stem = f"{found.name.replace('-', '_').replace('.', '_')}-{found.version}"
    inside = [file for file in found.files or () if file.parts[0] != ".."]
    files = [at for at in inside if at.name not in _DROPPED and not at.name.endswith(".pyc")]
    with zipfile.ZipFile(folder / f"{stem}-{_tag(found)}.whl", "w") as wheel:
        for file in files:
            entry = zipfile.ZipInfo(file.as_posix())
            entry.external_attr = 0o644 << 16
            with open(found.locate_file(file), "rb") as source, wheel.open(entry, "w") as copy:
                shutil.copyfileobj(source, copy)


def _tag(found: Distribution) -> str:
    text = found.read_text("WHEEL") or ""
    tags = [line[5:].split("-") for line in text.splitlines() if line.startswith("Tag: ")]
    return "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))

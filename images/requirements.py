"""What pip has to install for the package of a pyproject.toml with some extras, a line each.

`python3 requirements.py PYPROJECT EXTRA,EXTRA`: so that a layer of packages comes before, and
outlives, our own code. Knows nothing of versions other than those that are written there.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(pyproject: str, extras: Sequence[str]) -> list[str]:
    """The package's dependencies and those of `extras`. `SystemExit` for an unknown extra."""
    project = tomllib.loads(pyproject)["project"]
    known = project["optional-dependencies"]
    if unknown := [extra for extra in extras if extra not in known]:
        raise SystemExit(f"there is no extra {unknown[0]!r}; there are {', '.join(known)}")
    return [*project["dependencies"], *(line for extra in extras for line in known[extra])]


def main(argv: Sequence[str]) -> None:
    file, names = argv
    extras = [name for name in names.split(",") if name]
    lines = requirements(Path(file).read_text(encoding="utf-8"), extras)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

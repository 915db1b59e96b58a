"""Lists what is named by a tag where it could be named by its content; ends with 1 if there is any.

Base images need a digest, actions of workflows a commit. A new digest of a base image is printed by
`docker buildx imagetools inspect NAME:TAG`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BASE = re.compile(r"^(?:ARG \w+_IMAGE=|FROM )(\S+)", re.MULTILINE)
_ACTION = re.compile(r"uses: *([^\s#]+)")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}")
_COMMIT = re.compile(r"@[0-9a-f]{40}")


def unpinned(root: Path) -> Iterator[str]:
    """A line for each name that may come to mean something else."""
    yield from _bases(root / "images" / "Dockerfile")
    for path in sorted((root / ".github" / "workflows").glob("*.y*ml")):
        for name in _ACTION.findall(path.read_text(encoding="utf-8")):
            if not name.startswith("./") and not _COMMIT.search(name):
                yield f"{path.name}: the action {name} has no commit"


def _bases(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    for name in _BASE.findall(text):
        # An argument is judged where it is set; "scratch" is empty.
        is_stage = name in {*stages, "scratch"} or "${" in name
        if not is_stage and not _DIGEST.search(name):
            yield f"{file.name}: the base image {name} has no digest"


def main() -> None:
    found = list(unpinned(ROOT))
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

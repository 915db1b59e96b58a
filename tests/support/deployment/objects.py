"""A C++ compiler that keeps its objects, so that one run of the tests compiles each source once.

Every build still runs by its own command, with its own flags: only an object of the same source,
headers and flags is taken from an earlier build.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

COMPILERS = ("c++", "g++", "clang++")


def keeping_compiler(folder: Path) -> str:
    """Return a program that compiles as the compiler here does, and keeps objects in `folder`."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), COMPILERS[0])
    folder.mkdir(exist_ok=True)
    path = folder / f"compiler-{os.getpid()}"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {compiler} {folder} "$@"\n')
    path.chmod(0o755)
    return str(path)


def _compiled(compiler: str, folder: Path, arguments: list[str]) -> int:
    """Compile `-c SOURCE -o OBJECT`, or copy the object that is there; link as ever."""
    if "-c" not in arguments:
        return subprocess.run([compiler, *arguments], check=False).returncode
    source, goal = (Path(arguments[arguments.index(flag) + 1]) for flag in ("-c", "-o"))
    flags = [one for one in arguments if one not in (str(source), str(goal))]
    digest = hashlib.sha256(repr((compiler, flags, source.name)).encode())
    for path in sorted({source, *source.parent.glob("*.h")}):
        digest.update(path.read_bytes())
    kept = folder / digest.hexdigest()
    with FileLock(f"{kept}.lock"):
        if not kept.exists():
            code = subprocess.run([compiler, *arguments], check=False).returncode
            if code:
                return code
            shutil.copy(goal, folder / f"{kept.name}.new")
            os.replace(folder / f"{kept.name}.new", kept)
    shutil.copy(kept, goal)
    return 0


if __name__ == "__main__":
    sys.exit(_compiled(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))

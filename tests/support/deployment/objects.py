"""A C++ compiler that keeps its objects: the installation and all tests compile each source once.

Every build still runs by its own command, with its own flags: only an object of the same compiler,
source, headers and flags is taken from an earlier build. `python objects.py FOLDER` writes the
compiler there and prints its path, or nothing without a compiler. It needs no package: it runs
before any is installed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")


def keeping_compiler(folder: Path) -> str | None:
    """Return a program that compiles as the compiler here does, and keeps objects in `folder`."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
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
    identity = (compiler, os.stat(compiler).st_mtime_ns, flags, source.name)
    digest = hashlib.sha256(repr(identity).encode())
    for path in sorted({source, *source.parent.glob("*.h")}):
        digest.update(path.read_bytes())
    kept = folder / digest.hexdigest()
    with open(f"{kept}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            code = subprocess.run([compiler, *arguments], check=False).returncode
            if code:
                return code
            shutil.copy(goal, folder / f"{kept.name}.new")
            os.replace(folder / f"{kept.name}.new", kept)
    shutil.copy(kept, goal)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.stdout.write(keeping_compiler(Path(sys.argv[1]).resolve()) or "")
    else:
        sys.exit(_compiled(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))

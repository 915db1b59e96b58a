"""Commands that tests run as processes of their own, and wait for."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE_DIRS = (
    ROOT,
    *(ROOT / "services" / role for role in ("draft", "gateway", "router", "target")),
)
"""Folders that hold this checkout's import packages."""
IMPORT_PATH = os.pathsep.join(map(str, PACKAGE_DIRS))


def ran(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit status and what it wrote, as text."""
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def ran_python(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this checkout's package, and with further variables in its environment."""
    env = {**os.environ, "PYTHONPATH": IMPORT_PATH, "OMP_NUM_THREADS": "1", **variables}
    return ran(sys.executable, *words, env=env, timeout=280)


def refusal(capsys: Any, *words: str) -> str:
    """Run a command of `slipstream` that must be refused, and return its one sentence."""
    from slipstream.cli.main import exit_code

    assert exit_code([*words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == said.err.count("error: ") == 1
    return said.err

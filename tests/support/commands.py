"""Commands that tests run as processes of their own, and wait for."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def ran(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit status and what it wrote, as text."""
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def ran_python(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this checkout's package, and with further variables in its environment."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "OMP_NUM_THREADS": "1", **variables}
    return ran(sys.executable, *words, env=env, timeout=280)

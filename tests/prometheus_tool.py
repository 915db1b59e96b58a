"""promtool, where it is installed: Prometheus' own judge of rules and expressions."""

import shutil
import subprocess
from pathlib import Path

import pytest


def promtool(*arguments: str | Path) -> None:
    """Run it; skip the test where there is none, and fail with all that it says."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    done = subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr

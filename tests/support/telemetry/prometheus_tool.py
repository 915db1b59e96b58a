"""promtool, where it is installed: Prometheus' own judge of rules and expressions."""

import shutil
from pathlib import Path

import pytest

from support.commands import ran


def promtool(*arguments: str | Path, text: str | None = None) -> None:
    """Run it, with the text on its standard input; skip the test where there is none.
    What it does not take fails, with all that it says."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    done = ran(tool, *arguments, input=text, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr

"""promtool, where it is installed: Prometheus' own judge of rules and expressions."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from support.commands import ran


def promtool(*arguments: str | Path, text: str | None = None) -> None:
    """Run it, with the text on its standard input; skip the test where there is none.
    What it does not take fails, with all that it says."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    done = ran(tool, *arguments, input=text, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def check_expressions(folder: Path, expressions: Iterable[str]) -> None:
    """Fail for expressions that Prometheus does not understand; there must be some."""
    rules = [{"record": f"test:{number}", "expr": at} for number, at in enumerate(expressions)]
    assert rules
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "test", "rules": rules}]}))
    promtool("check", "rules", file)

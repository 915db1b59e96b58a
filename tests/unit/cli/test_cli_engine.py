"""How a command loads engines: what is decided before anything computes still counts."""

import os
import sys
from pathlib import Path

import pytest

from support.commands import IMPORT_PATH, ran
from support.models.tiny_checkpoint import save_checkpoint

ROOT = Path(__file__).resolve().parent.parent.parent.parent
VARIABLE = "GOMP_SPINCOUNT"
PROGRAM = f"""
import gc, os, sys
from slipstream.cli import main
from slipstream.cli.engine import fetched
from slipstream.cli.options import EngineFlags
from slipstream.config import set_default_variables

def decide(values):
    assert not {"torch", "slipstream.client.engine"} & set(sys.modules)
    set_default_variables(values)

fetched.__globals__["set_default_variables"] = decide
with fetched(EngineFlags(target=sys.argv[1])):
    assert "slipstream.client.engine" in sys.modules
    assert gc.isenabled() and gc.get_freeze_count() > 50_000
sys.stdout.write(os.environ["{VARIABLE}"])
"""


@pytest.mark.parametrize(("said", "expected"), [({}, "3000"), ({VARIABLE: "7"}, "7")])
def test_idle_threads_soon_stop_spinning_if_the_environment_says_nothing(tmp_path, said, expected):
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env |= {**said, "PYTHONPATH": IMPORT_PATH}
    done = ran(sys.executable, "-c", PROGRAM, save_checkpoint(tmp_path / "tiny"), env=env)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr

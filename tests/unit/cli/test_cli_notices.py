"""Warnings reach whoever runs a command: on standard error, each of them once."""

import pytest

from support.commands import ran_python
from support.models.tiny_checkpoint import save_checkpoint

SLOW_FLOAT16 = """
import sys
from slipstream.models.numerics import dtype_times
dtype_times._measure = lambda: {"bfloat16": 0.001, "float16": 0.004, "float32": 0.003}
from slipstream.cli.main import run
run()
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(save_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny"))


@pytest.fixture
def generate(checkpoint, tmp_path):
    """Run `slipstream generate` as a process on a machine where float16 is slow."""

    def call(*arguments):
        command = ["generate", "--target", checkpoint, "--max-new-tokens", "4", *arguments, "abc"]
        done = ran_python("-c", SLOW_FLOAT16, *command, SLIPSTREAM_CACHE=str(tmp_path))
        return done.returncode, done.stdout, done.stderr

    return call


def test_a_slow_dtype_generates_with_one_warning_that_names_the_faster_one(generate, checkpoint):
    """Target and draft both load in it, and `--compare` loads the target again."""
    code, out, err = generate(
        "--dtype", "float16", "--draft", f"vanilla:{checkpoint}", "--compare", "--json"
    )
    assert code == 0, err
    assert out.startswith("{")
    warning = "warning: dtype float16 is 4.0 times slower than bfloat16 on this CPU: use auto"
    assert err.splitlines().count(warning) == 1
    assert err.count("warning") == 1

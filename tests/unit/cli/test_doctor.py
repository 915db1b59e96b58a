"""`slipstream doctor`: facts for reports of faults, without secrets; completion of the shell."""

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from support.commands import ran_python


def said(*words, **variables):
    done = ran_python("-m", "slipstream.cli.main", *words, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def facts():
    return json.loads(
        said("doctor", "--json", SLIPSTREAM_TOKEN="sk-secret", SLIPSTREAM_NATIVE="off")
    )


def test_a_report_has_all_that_a_fault_may_depend_on(facts):
    sections = ["slipstream", "processor", "engine", "GPU"]
    assert list(facts) == [*sections, "environment", "packages"]
    assert facts["packages"]["torch"] == version("torch")
    assert facts["processor"]["threads"] == os.cpu_count()
    assert facts["engine"]["kernels"].startswith("torch")
    assert any("on cpu" in at for at in facts["engine"]["dtype auto"])


def test_a_report_has_no_secret_and_no_home(facts):
    assert facts["environment"]["SLIPSTREAM_TOKEN"] == "***"
    assert facts["environment"]["SLIPSTREAM_NATIVE"] == "off"
    text = json.dumps(facts)
    assert "sk-secret" not in text
    assert str(Path.home()) not in text


def test_the_text_has_the_same_facts():
    text = said("doctor")
    assert f"torch             {version('torch')}" in text
    assert text.startswith("slipstream\n  version")


@pytest.mark.parametrize(
    ("line", "word", "found"),
    [("slipstream doc", 1, "doctor"), ("slipstream doctor --j", 2, "--json")],
)
def test_a_shell_completes_commands_and_options(line, word, found):
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(word)}
    text = said(_SLIPSTREAM_COMPLETE="complete_bash", **asked)
    assert found in text.split()

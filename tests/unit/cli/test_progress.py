"""Progress is shown on a terminal and nowhere else, and not where it is not wanted."""

import os
import pty
import subprocess
import sys
from contextvars import copy_context

import pytest

from slipstream.cli.main import exit_code
from slipstream.cli.progress import QUIET

SCRIPT = """
import sys
from slipstream.cli.progress import QUIET, bars, count_bar, step_bar, waiting

QUIET.set("quiet" in sys.argv)
with bars() as bar:
    bar.step("fetching", total=4 << 20)
    bar.advance(1 << 20)
with step_bar(2) as advance:
    advance("measuring")
with count_bar("counting") as count:
    count(3, 9)
with waiting("starting"):
    print("line of a log", file=sys.stderr)
"""
STEPS = ("fetching", "measuring", "counting", "starting")


def shown(*arguments, is_terminal):
    """What is written to standard error."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    command = [sys.executable, "-c", SCRIPT, *arguments]
    with subprocess.Popen(command, stderr=theirs, env={**os.environ, "TERM": "xterm"}):
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:  # a terminal whose other end has closed
            pass
        os.close(ours)
    return text.decode()


def test_a_terminal_shows_every_step_and_the_lines_between():
    text = shown(is_terminal=True)
    assert [step for step in STEPS if step not in text] == []
    assert "3/9" in text
    assert "line of a log" in text


@pytest.mark.parametrize(
    ("arguments", "is_terminal"), [((), False), (("quiet",), True), (("quiet",), False)]
)
def test_elsewhere_and_where_it_is_quiet_only_the_lines_are_written(arguments, is_terminal):
    text = shown(*arguments, is_terminal=is_terminal)
    assert text.strip() == "line of a log"


FLAGS = [(["--quiet", "version"], True), (["version"], False)]


@pytest.mark.parametrize(("words", "is_quiet"), FLAGS)
def test_a_flag_before_the_command_makes_it_quiet(words, is_quiet):
    def ran():
        return exit_code(words), QUIET.get()

    assert copy_context().run(ran) == (0, is_quiet)

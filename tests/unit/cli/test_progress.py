"""Progress is shown on a terminal and nowhere else."""

import os
import pty
import subprocess
import sys

SCRIPT = """
import sys
from slipstream.cli.progress import bars, count_bar, step_bar, waiting

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


def shown(*, is_terminal):
    """What is written to standard error."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    command = [sys.executable, "-c", SCRIPT]
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


def test_elsewhere_only_the_lines_are_written():
    assert shown(is_terminal=False).strip() == "line of a log"

"""A child says when it is ready, is heard, ends when told to, and never outlives its parent."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.core.errors import InvalidRequest, ServiceError
from slipstream.local.child import Child, start_child
from support.commands import IMPORT_PATH
from support.services.background import until

TESTS = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 20
PARENT = """
import asyncio, sys
from slipstream.local.child import start_child

async def main():
    child = await start_child("draft", "stand_in", ["--deaf"], on_line=lambda *_: None)
    await child.ready()
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{IMPORT_PATH}{os.pathsep}{TESTS}")


async def start(*flags, on_line=lambda *_: None) -> Child:
    return await start_child("draft", "stand_in", flags, on_line=on_line)


async def test_all_that_a_child_writes_is_passed_on_but_for_the_ready_line():
    heard = []
    child = await start("--loud", on_line=lambda *said: heard.append(said))
    await child.ready()
    await until(lambda: {("draft", "on stdout"), ("draft", "second")} <= {*heard})
    await child.stop(LIMIT_S)
    lines = [line for _, line in heard]
    assert not any(line.startswith("ready") for line in lines)
    assert sum(line.count("x") for line in lines) == 200_000


@pytest.mark.parametrize(
    ("flags", "kind", "reason"),
    [
        (["--dies", "2"], InvalidRequest, "it is not to be"),
        (["--dies", "1"], ServiceError, "it is not to be"),
        (["--crashes"], ServiceError, r"ended with exit code 1 \(RuntimeError: a bug\)"),
        (["--is-killed"], ServiceError, "ended by SIGKILL"),
    ],
)
async def test_a_child_that_does_not_start_says_why_or_else_how_it_ended(flags, kind, reason):
    child = await start(*flags)
    with pytest.raises(kind, match=f"^the draft did not start: {reason}$"):
        await child.ready()


async def test_a_child_that_does_not_end_is_killed_after_the_grace():
    heard = []
    child = await start("--deaf", on_line=lambda *said: heard.append(said))
    await child.ready()
    await child.stop(0)
    assert child.exit_text() == "ended by SIGKILL"
    assert ("draft", "has not ended within 0 s and is killed") in heard


def test_a_child_does_not_outlive_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([child], [], [], LIMIT_S)[0]
    finally:
        os.close(child)

"""A service as a process: its options reach it, and errors become one sentence and a code."""

import gc
from dataclasses import dataclass

import pytest

from slipstream.core import errors
from slipstream.options import option
from slipstream.rpc.process import run_service, say_ready


@dataclass(frozen=True, slots=True)
class Options:
    """What the service of these tests can be told."""

    size: int = option(3, "A size.")


def run(serve, *argv):
    return run_service("router", Options, serve, argv=argv, doc="A service.")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("it is bad"), 2),
        (errors.ModelNotFound("it is bad"), 2),
        (errors.Unavailable("it is bad"), 1),
        (errors.CapacityError("it is bad"), 1),
        (errors.InternalError("it is bad"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_bad_input_ends_with_2(capsys, error, code):
    async def serve(options, telemetry):
        raise error

    assert run(serve) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "error: it is bad\n")


def test_options_that_are_none_end_with_2_before_anything_is_served(capsys):
    async def serve(options, telemetry):
        raise AssertionError("it was served")

    assert run(serve, "--colour", "blue") == 2
    assert "has no '--colour'" in capsys.readouterr().err


def test_a_bug_is_no_sentence():
    async def serve(options, telemetry):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(serve)


def test_what_is_loaded_by_the_time_that_a_service_serves_is_not_collected_again():
    async def serve(options, telemetry):
        loaded = [[] for _ in range(1000)]
        say_ready("127.0.0.1:1")
        assert not {id(item) for item in loaded} & set(map(id, gc.get_objects()))

    assert run(serve) == 0
    gc.unfreeze()

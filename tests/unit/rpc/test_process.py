"""A service as a process: its options reach it, and errors become one sentence and a code."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from slipstream.core import errors
from slipstream.options import build, option
from slipstream.rpc.process import run_service
from slipstream_draft.config import DraftConfig
from slipstream_router.config import RouterConfig
from slipstream_target.config import TargetConfig


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


def test_a_bug_is_no_sentence():
    async def serve(options, telemetry):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(serve)


ROUTER = partial(build, RouterConfig, targets=("127.0.0.1:1",))
TARGET, DRAFT = partial(build, TargetConfig), partial(build, DraftConfig)
C, K = Path("c"), Path("k")
IN_ALL = [
    ({"grace_s": -1.0}, "grace_s is -1"),
    ({"address": "0.0.0.0:65536"}, "address is '0.0.0.0:65536', but must be HOST:PORT"),
    ({"health_address": "127.0.0.1"}, "health_address is '127.0.0.1'"),
    ({"tls_cert": C}, "go together"),
    ({"tls_client_ca": C}, "tls_client_ca needs"),
]
IN_ENGINES = [
    ({"threads": 0}, "threads is 0"),
    ({"max_sessions": 0}, "max_sessions is 0"),
    ({"max_parked_bytes": -1}, "max_parked_bytes is -1"),
    ({"max_park_ttl_s": float("nan")}, "max_park_ttl_s is nan"),
]
AGES = [
    ({"max_connections": -1}, "max_connections is -1, but must be 0 for no limit"),
    ({"max_connection_idle_s": 0.5}, "max_connection_idle_s is 0.5, but must be 0 for never"),
    ({"max_connection_age_s": 0.5}, "must be 0 for never, or 1 to"),
    ({"max_connection_age_s": 1e9}, "max_connection_age_s is 1000000000.0"),
    ({"max_connection_age_s": float("nan")}, "max_connection_age_s is nan"),
    ({"max_connection_age_grace_s": -1}, "max_connection_age_grace_s is -1"),
    ({"max_connection_age_grace_s": 20}, "less than the 30.0 of grace_s"),
]


@pytest.mark.parametrize(
    ("configured", "values", "sentence"),
    [
        *((made, *case) for made in (ROUTER, TARGET, DRAFT) for case in IN_ALL),
        *((made, *case) for made in (TARGET, DRAFT) for case in IN_ENGINES),
        *((ROUTER, *case) for case in AGES),
        (ROUTER, {"targets": ()}, "targets"),
        (ROUTER, {"max_requests": 0}, "max_requests"),
        (ROUTER, {"draft_round_timeout_s": 0.0}, "draft_round_timeout_s"),
        (ROUTER, {"park_ttl_s": -1.0}, "park_ttl_s"),
        (ROUTER, {"drafter": "magic"}, "drafter"),
        (ROUTER, {"peer_cert": C}, "peer_cert"),
        (ROUTER, {"peer_ca": C, "peer_cert": C}, "peer_key"),
        (TARGET, {"max_waiting": -1}, "max_waiting is -1"),
        (TARGET, {"max_rows_per_step": 127}, "max_rows_per_step is 127, but must be 128 or more"),
        (TARGET, {"max_prompt_delay_ms": float("nan")}, "max_prompt_delay_ms is nan"),
        (TARGET, {"kv_memory": "lots"}, "a memory budget is 'lots'"),
        (TARGET, {"numerics": "exact"}, "numerics is 'exact'"),
        (TARGET, {"advertised_address": "nowhere"}, "the address is 'nowhere'"),
        (TARGET, {"address": "0.0.0.0:50061"}, "no draft can dial: set advertised_address"),
        (TARGET, {"max_message_bytes": 10}, "max_message_bytes is 10"),
        (DRAFT, {"kv_wait_ms": -1.0}, "kv_wait_ms"),
        (DRAFT, {"kv_encoding": "int4"}, "kv_encoding"),
        (DRAFT, {"window": 127}, "window"),
        (DRAFT, {"peer_cert": C, "peer_key": K}, "peer_cert"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(configured, values, sentence):
    with pytest.raises(errors.InvalidRequest, match=sentence):
        configured(**values)

"""Services whose collector is not there, or says nothing: they serve, and end in good time."""

import signal
import socket
from contextlib import ExitStack, contextmanager

import pytest

from slipstream.client import Client
from support.services.processes import serve

PATIENCE_S = 60
"""For a grace of 1 second and exports that fail, with time to spare."""
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@contextmanager
def dead(kind):
    """The address of a collector: one where nobody listens, or one that takes calls in silence."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == "silent":
            taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def telling(kind, exporter, stack):
    """Flags of a service that tells everything at once, to nobody."""
    flags = ["--traces", exporter, "--metrics", exporter, "--metrics-interval-s", "0.2"]
    flags += ["--otlp-endpoint", f"http://{stack.enter_context(dead(kind))}"]
    return [*flags, "--trace-ratio", "1", "--address", "127.0.0.1:0", "--grace-s", "1"]


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def test_services_whose_collector_is_dead_serve_and_end_in_good_time(model, stack):
    exact = ("--model", str(model), "--dtype", "float32")
    flags = telling("silent", "otlp", stack)
    target = stack.enter_context(serve("target", *exact, *flags, env=AT_ONCE))
    flags = telling("refused", "otlp-http", stack)
    at = ("--targets", target.ready())
    router = stack.enter_context(serve("router", *at, *flags, env=AT_ONCE))
    router.until_logged("is ready")
    with Client(router.ready(), timeout_s=60) as client:
        for _ in range(3):
            assert len(client.generate("hello", max_tokens=20).token_ids) == 20
    for process in (router, target):
        process.signal(signal.SIGTERM)
    for process in (router, target):
        assert process.wait(PATIENCE_S) == 0
        assert not [line for line in process.err if "Traceback" in line]

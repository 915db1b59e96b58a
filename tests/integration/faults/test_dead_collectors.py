"""Services whose collector is not there, or says nothing: they serve, and end in good time."""

import signal
import socket
from contextlib import contextmanager

from slipstream.client import Client
from support.services.processes import serve

PATIENCE_S = 60
"""For a grace of 1 second and exports that fail, with time to spare."""
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@contextmanager
def telling(kind, exporter):
    """Flags of a service that exports everything at once to a collector that refuses calls, or
    takes them in silence."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == "silent":
            taken.listen()
        flags = ["--traces", exporter, "--metrics", exporter, "--metrics-interval-s", "0.2"]
        flags += ["--otlp-endpoint", f"http://127.0.0.1:{taken.getsockname()[1]}"]
        yield [*flags, "--trace-ratio", "1", "--address", "127.0.0.1:0", "--grace-s", "1"]


def test_services_whose_collector_is_dead_serve_and_end_in_good_time(model):
    exact = ("--model", str(model), "--dtype", "float32")
    with (
        telling("silent", "otlp") as silent,
        telling("refused", "otlp-http") as refused,
        serve("target", *exact, *silent, env=AT_ONCE) as target,
        serve("router", "--targets", target.ready(), *refused, env=AT_ONCE) as router,
    ):
        router.until_logged("is ready")
        with Client(router.ready(), timeout_s=60) as client:
            for _ in range(3):
                assert len(client.generate("hello", max_tokens=20).token_ids) == 20
        for process in (router, target):
            process.signal(signal.SIGTERM)
        for process in (router, target):
            assert process.wait(PATIENCE_S) == 0
            assert not [line for line in process.err if "Traceback" in line]

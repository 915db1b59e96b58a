"""Target, draft and routers as processes that tell of themselves, and who asks them."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from slipstream.client import Client, Mode, SpeculationOptions
from slipstream.client.connection import connection
from slipstream.client.remote import RemoteBackend
from slipstream.telemetry.sdk_spans import SdkTelemetry
from support.network.key_files import key, write_keys
from support.services.processes import Process, freeze, kill, serve, thaw
from support.telemetry.otlp_collector import Collector

TOKEN = "token-that-only-its-holder-knows"
FORCED = SpeculationOptions(mode=Mode.FORCED, lookup=False)
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
ANY = "127.0.0.1:0"


def telling(to: Collector, *, ratio: float = 1) -> list[str]:
    """Flags of a service that tells everything at once."""
    return [
        *("--traces", "otlp", "--metrics", "otlp", "--otlp-endpoint", to.url),
        *("--metrics-interval-s", "0.2", "--metrics-address", ANY),
        *("--trace-ratio", str(ratio), "--address", ANY),
    ]


class Services:
    """A target and a draft, and as many routers to them as are asked for."""

    def __init__(self, to: Collector, target: Path, draft: str, stack: ExitStack) -> None:
        self._to = to
        self._stack = stack
        self._keys = write_keys(target.parent / "keys.toml", key("caller", TOKEN))
        model, exact = str(target), ("--dtype", "float32")
        self.target = self._start("target", "--model", model, *exact)
        self.draft = self._start("draft", "--draft", draft, "--target-model", model, *exact)
        self.routers: list[Process] = []

    def router(self, *flags: str, ratio: float = 1) -> Process:
        """One more router; requests can be sent to it, and the draft is ready for them."""
        at = ("--targets", self.target.ready(), "--drafts", self.draft.ready())
        keys = ("--key-file", str(self._keys))
        self.routers.append(self._start("router", *at, *keys, *flags, ratio=ratio))
        self.routers[-1].ready()
        self.routers[-1].until_logged("is ready", times=2)
        return self.routers[-1]

    def lose_draft(self, chunks: Any) -> list[Any]:
        """All of a stream, whose draft is killed while it goes on."""
        with closing(chunks):
            before = list(islice(chunks, 3))
            freeze(self.target.pid)  # so that it still goes on when its draft is gone
            kill(self.draft.pid)
            thaw(self.target.pid)
            return [*before, *chunks]

    def stop(self) -> list[int]:
        """Exit codes of all that run, routers first; what they had to tell is told then."""
        for process in self.routers:
            process.signal(signal.SIGTERM)
        codes = [process.wait() for process in self.routers]
        engines = [at for at in (self.draft, self.target) if at.is_running]
        for process in engines:
            process.signal(signal.SIGTERM)
        return codes + [process.wait() for process in engines]

    def _start(self, role: str, *flags: str, ratio: float = 1) -> Process:
        process = serve(role, *telling(self._to, ratio=ratio), *flags, env=AT_ONCE)
        return self._stack.enter_context(process)


@contextmanager
def services(to: Collector, target: Path, draft: str) -> Iterator[Services]:
    with ExitStack() as stack:
        yield Services(to, target, draft, stack)


@contextmanager
def asking(router: Process, telemetry: SdkTelemetry | None = None) -> Iterator[Client]:
    to = connection(router.ready(), token=TOKEN, tls=None, retries=True)
    backend = RemoteBackend(to, 60, to.channel(is_blocking=True))
    with Client.of(backend, telemetry=telemetry) as client:
        yield client

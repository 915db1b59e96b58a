"""Scripts in Redis, within a time; all that can go wrong on the way becomes a sentence here.

Knows nothing of what scripts do. Imports `redis`, as `connect` does.
"""

import asyncio
import hashlib
import os
import ssl
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import exceptions as faults
from redis.asyncio import RedisCluster

from slipstream.core.errors import Unavailable

_NO_PERMISSION = "does not let its user do what is needed; see its ACL"
_NO_MEMORY = "has no memory left"
_IS_REPLICA = "is a replica, which can't be written"

_AS_IT_IS: tuple[tuple[Any, str], ...] = (
    (faults.TimeoutError | TimeoutError, "did not answer in time"),
    (faults.AuthenticationError, "does not take this user or password"),
    (faults.NoPermissionError, _NO_PERMISSION),
    (faults.OutOfMemoryError, _NO_MEMORY),
    (faults.ReadOnlyError, _IS_REPLICA),
    (faults.BusyLoadingError, "is still reading its data"),
    (faults.MaxConnectionsError, "is asked too much at once"),
    (faults.MovedError, "is part of a cluster, which store_url does not say (redis+cluster)"),
    (faults.ClusterDownError, "is a cluster that is down"),
    (faults.RedisClusterException, "is a cluster that can't be reached"),
)

# Some versions say what stopped a script in the middle of a line about the script.
_IN_SCRIPTS = {
    "NOPERM": _NO_PERMISSION,
    "ACL failure": _NO_PERMISSION,
    "-OOM": _NO_MEMORY,
    "-READONLY": _IS_REPLICA,
}


@dataclass(frozen=True, slots=True)
class Script:
    """A script of Redis, known to servers by its digest."""

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


class Calls:
    """What is asked of one Redis."""

    def __init__(self, client: Any, *, timeout_s: float, place: str) -> None:
        """`client` is one of `redis.asyncio`, closed with this; `place` is for errors."""
        self._client = client
        self._timeout_s = timeout_s
        self._place = place
        self._is_cluster = isinstance(client, RedisCluster)
        self._preparing: asyncio.Future[Any] | None = None
        """Held because the loop does not."""
        self._running: set[asyncio.Task[Any]] = set()

    async def run(
        self, script: Script, keys: Sequence[str], args: Sequence[Any], *, again: bool = True
    ) -> Any:
        """What a script answers. Raises `Unavailable`.

        `again` says that it may run twice, which it does when a connection breaks.
        """
        try:
            return await self._in_time(self._evaluate(script, keys, args, again=again))
        except (faults.RedisError, faults.RedisClusterException, OSError) as error:
            if isinstance(error, faults.ReadOnlyError) and not self._is_cluster:
                # Another server may answer to the name by now.
                await self._client.connection_pool.disconnect(inuse_connections=False)
            raise Unavailable(f"the store at {self._place} {_why(error)}") from None

    async def aclose(self) -> None:
        """End what runs, and connections. Again is fine."""
        if running := set(self._running):
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        await self._client.aclose()

    async def _in_time(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the work returns. It has a task of its own.

        `asyncio.wait_for`, which `redis` uses, may lose a cancellation before Python 3.12; here
        neither the caller's nor the time's gets lost.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        finally:
            task.cancel()
        if not done:
            raise TimeoutError
        return await task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # has been seen, should nobody wait for it any more

    async def _evaluate(
        self, script: Script, keys: Sequence[str], args: Sequence[Any], *, again: bool
    ) -> Any:
        await self._prepare()
        command = self._client.execute_command
        rest = (len(keys), *keys, *args)
        try:
            return await command("EVALSHA", script.digest, *rest)
        except faults.NoScriptError:
            return await command("EVAL", script.text, *rest)
        except faults.ConnectionError as error:
            # Such as of a server that has been started anew behind an idle connection.
            if not again or type(error) is not faults.ConnectionError:
                raise
        return await command("EVAL", script.text, *rest)

    async def _prepare(self) -> None:
        """Have a cluster's layout, which to learn may take longer than an operation may."""
        if self._is_cluster:
            self._preparing = asyncio.ensure_future(self._client.initialize())
            await asyncio.shield(self._preparing)


def _why(error: BaseException) -> str:
    for kind, why in _AS_IT_IS:
        if isinstance(error, kind):
            return why
    if isinstance(error, faults.ResponseError):
        return _of_script(str(error))
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, OSError) and (text := _of_system(cause)):
            return text
    return "can't be reached"


def _of_script(text: str) -> str:
    for sign, why in _IN_SCRIPTS.items():
        if sign in text:
            return why
    return f"fails ({text.split(' ', 1)[0][:40]})"  # the rest may quote what was sent


def _of_system(error: OSError) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"shows a certificate that is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"does not agree on TLS ({error.reason or 'it hung up'})"
    return f"can't be reached ({os.strerror(error.errno)})" if error.errno else None

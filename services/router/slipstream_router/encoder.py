"""Prompts of a router to token ids, in worker processes of their model: nothing of it on the loop.

A model has a worker for short prompts and one for long ones, of its own: neither a long prompt nor
the chat template of another model is waited for.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from array import array
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import finalize

from slipstream.config import child_environment
from slipstream.core.errors import (
    InternalError,
    InvalidRequest,
    PromptTooLong,
    Unavailable,
    UnsupportedCombination,
    WeightsError,
    check_token_ids,
)
from slipstream.core.request.prompt import Prompt, PromptForm, are_ids, checked_prompt
from slipstream.parent_watch import watched_command
from slipstream.text.token_bytes import MAX_TABLE_BYTES, TokenTable
from slipstream.text.worker import SIZES, WorkerRequest, load_request, prompt_request

LONG_PROMPT = 8192
"""Bytes from which on a prompt is for the worker of long ones, which the first of them starts."""
SLOWEST = 30.0
"""Times the CPU time that a request to a worker may take on the clock."""
_PIECE = 1 << 18
_MAX_HEAD = 1 << 16
_ERRORS = {
    kind.__name__: kind
    for kind in (InvalidRequest, PromptTooLong, UnsupportedCombination, WeightsError)
}
_COMMAND = (sys.executable, "-m", "slipstream.text.worker")
_LOG = logging.getLogger("slipstream.router")

Answer = tuple[dict[str, Any], bytes]


class TextWorker:
    """A worker process: started anew when it ends, and sent one request at a time. `close` it."""

    def __init__(self, load: WorkerRequest) -> None:
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._tasks = set[asyncio.Task[Any]]()
        self._is_closed = False

    async def load(self) -> Answer:
        """Start the process; return what it answers about the model's files."""
        async with self._lock:
            return await self._start()

    async def ask(self, request: WorkerRequest) -> Answer:
        """Return the answer to a request. Raises `InvalidRequest` where it takes too much.

        A caller that is cancelled leaves the request to end by itself.
        """
        await self._lock.acquire()
        return await asyncio.shield(self._spawn(self._exchange(request)))

    def close(self) -> None:
        """End the process for good, from any thread."""
        self._is_closed = True
        self._kill()
        with suppress(RuntimeError):  # the loop has ended, too
            self._loop.call_soon_threadsafe(lambda: self._spawn(self._ended()))

    async def aclose(self) -> None:
        """End the process for good, and wait for its end."""
        self._is_closed = True
        self._kill()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._ended()

    def _spawn(self, running: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has it, or has gone

    async def _exchange(self, request: WorkerRequest) -> Answer:
        """Run a request by the lock's holder; again where the process ended for another reason."""
        try:
            for _ in range(2):
                if self._process is None:
                    await self._start()
                with suppress(EOFError):
                    return await self._answer(request)
            raise InvalidRequest("the prompt has ended two processes that were to encode it")
        finally:
            self._lock.release()
            if self._process is None and not self._is_closed:
                self._spawn(self._restart())  # before the next request comes

    async def _restart(self) -> None:
        async with self._lock:
            if self._process is None:
                await self._start()

    async def _start(self) -> Answer:
        if self._is_closed:
            raise Unavailable("the router is about to stop")
        environment = child_environment({})
        self._process = await asyncio.create_subprocess_exec(
            *watched_command(_COMMAND),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={
                **{name: environment[name] for name in environment if "SLIPSTREAM" not in name},
                "TOKENIZERS_PARALLELISM": "false",
            },
        )
        try:
            return await self._answer(self._load)
        except EOFError:
            raise Unavailable("the worker process that encodes prompts does not start") from None

    async def _answer(self, request: WorkerRequest) -> Answer:
        """Return the answer of the process. Raises `EOFError` when it ends for no known reason."""
        assert self._process is not None
        answer = None
        try:
            async with asyncio.timeout(SLOWEST * request.cpu_s):
                answer = await _exchanged(self._process, request.frame)
        except TimeoutError:
            raise _over(f"{SLOWEST * request.cpu_s:.3g} s") from None
        except (OSError, EOFError) as error:  # it has closed a pipe
            code = await self._ended()
            if code == -signal.SIGPROF:
                raise _over(f"{request.cpu_s:.3g} s of CPU") from None
            if not self._is_closed:
                _LOG.warning("a worker process that encodes prompts has ended with %s", code)
            raise EOFError from error
        finally:
            if answer is None:
                await self._ended()
        about, _ = answer
        if "error" not in about:
            return answer
        if about["error"] == MemoryError.__name__:
            raise _over(about["text"])
        raise _ERRORS.get(about["error"], InternalError)(about["text"])

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            # `Process.kill` may reap the process, and then its exit code is lost.
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def _ended(self) -> int:
        """Wait for the end of a process that was killed, or has closed its output."""
        self._kill()
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        process.stdin.close()
        return await process.wait()


class ModelText:
    """Text of a model: encodes its prompts in two workers, and decodes its tokens. `aclose` it."""

    def __init__(
        self, table: TokenTable, workers: tuple[TextWorker, TextWorker], *, has_chat_template: bool
    ) -> None:
        self.table = table
        self.has_chat_template = has_chat_template
        self._workers = workers
        for worker in workers:
            finalize(self, worker.close)

    async def encode(
        self, prompt: Prompt, form: PromptForm, *, max_tokens: int, last_token: int | None = None
    ) -> tuple[int, ...]:
        """Return the token ids of a first turn, or of one behind `last_token`.

        Raises `PromptTooLong` for a prompt that is longer than `max_tokens`, the context, and
        `InvalidRequest` where the chat template or the tokenizer takes too much for it.
        """
        content: Any = checked_prompt(prompt, form)
        if not isinstance(content, str) and are_ids(content):
            check_token_ids("the prompt", content, len(self.table))
            return tuple(content)
        request = prompt_request(content, form, last_token=last_token, max_tokens=max_tokens)
        worker = self._workers[len(request.frame) >= LONG_PROMPT]
        _, body = await worker.ask(request)
        return tuple(array("I", body))

    async def aclose(self) -> None:
        for worker in self._workers:
            await worker.aclose()


async def open_text(
    tokenizer: bytes, chat_template: str, special_tokens: Mapping[str, str]
) -> tuple[ModelText, str]:
    """Return the text of a model by its tokenizer's files, and its vocabulary's hash.

    Raises `InvalidRequest` or `WeightsError` for files that can't be used within the limits.
    """
    load = load_request(tokenizer, chat_template, special_tokens)
    workers = TextWorker(load), TextWorker(load)
    try:
        about, body = await workers[0].load()
        text = ModelText(
            TokenTable.from_bytes(body), workers, has_chat_template=bool(chat_template)
        )
        return text, about["vocab_hash"]
    except BaseException:
        for worker in workers:
            await worker.aclose()
        raise


def _over(limit: str) -> InvalidRequest:
    return InvalidRequest(
        f"the chat template or the tokenizer of this model takes more than {limit}"
    )


async def _exchanged(process: Process, frame: bytes) -> Answer:
    """Send a request, and return the answer. Raises `EOFError` or `OSError` without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    for start in range(0, len(frame), _PIECE):
        process.stdin.write(frame[start : start + _PIECE])
        await process.stdin.drain()
    sizes = SIZES.unpack(await process.stdout.readexactly(SIZES.size))
    if sizes[0] > _MAX_HEAD or sizes[1] > MAX_TABLE_BYTES + _MAX_HEAD:
        raise EOFError
    head = await process.stdout.readexactly(sizes[0])
    return json.loads(head), await process.stdout.readexactly(sizes[1])

"""Worker process: `python -m slipstream.text.worker` loads a tokenizer, then encodes prompts.

Chat templates are programs, and texts are long: they run here, within limits of CPU time and of
memory, and never where others wait. Requests come on standard input, each a size and a value in
`marshal`'s format. Answers, which a template may have a hand in, go to standard output, each two
sizes, an object in JSON and bytes. It ends with its input.
"""

import gc
import json
import marshal
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.core.request.prompt import PromptForm
from slipstream.core.request.tools import Tool
from slipstream.text.prompts import check_size, encode_prompt
from slipstream.text.tokenizer import TextTokenizer

MAX_MEMORY_BYTES = 768 << 20
LOAD_CPU_S = 10.0
"""CPU time to load a tokenizer and to try the chat template."""
PROMPT_CPU_S, BYTE_CPU_S = 2.0, 8e-6
SIZES = struct.Struct("<II")
"""Bytes of an answer's JSON, and of what follows it."""
_SIZE = struct.Struct("<I")

Json = dict[str, Any]


class WorkerRequest(NamedTuple):
    """A request to a worker, and the CPU time that it may take."""

    frame: bytes
    cpu_s: float


def load_request(
    tokenizer: bytes,
    chat_template: str,
    special_tokens: Mapping[str, str],
    *,
    cpu_s: float = LOAD_CPU_S,
) -> WorkerRequest:
    """Return the request to load a model's tokenizer and chat template, a worker's first."""
    return _request((tokenizer, chat_template, dict(special_tokens)), cpu_s)


def prompt_request(
    prompt: Any, form: PromptForm, *, last_token: int | None, max_tokens: int
) -> WorkerRequest:
    """Return the request to encode a checked prompt, as `encode_prompt` does.

    Raises `PromptTooLong` for one that is far longer than `max_tokens` by its size.
    """
    size = check_size(prompt, form, max_tokens)
    about = (prompt, astuple(form), last_token, max_tokens)
    return _request(about, PROMPT_CPU_S + BYTE_CPU_S * size)


def _request(about: tuple[Any, ...], cpu_s: float) -> WorkerRequest:
    # No JSON: to write texts as that takes ten times as long as to copy them.
    data = marshal.dumps((cpu_s, about))
    return WorkerRequest(_SIZE.pack(len(data)) + data, cpu_s)


def _answer(about: Json, body: bytes = b"") -> bytes:
    head = json.dumps(about).encode()
    return SIZES.pack(len(head), len(body)) + head + body


class Worker:
    """The tokenizer of a model, and what this process answers."""

    def __init__(self) -> None:
        self._tokenizer: TextTokenizer | None = None

    def answer(self, about: tuple[Any, ...]) -> bytes:
        """Return the answer to a request: to load, or to encode. Errors are answers, too."""
        try:
            if self._tokenizer is None:
                return self._load(*about)
            prompt, (raw, special, tools, *more), last, limit = about
            form = PromptForm(raw, special, tuple(Tool(*tool) for tool in tools), *more)
            ids = encode_prompt(self._tokenizer, prompt, form, last_token=last, max_tokens=limit)
            return _answer({}, struct.pack(f"<{len(ids)}I", *ids))
        except SlipstreamError as error:
            return _answer({"error": type(error).__name__, "text": str(error)})
        except MemoryError:
            text = f"{MAX_MEMORY_BYTES >> 20} MiB of memory"
            return _answer({"error": "MemoryError", "text": text})
        except BaseException as error:  # panics of the library are no `Exception`
            text = f"the model's tokenizer or chat template fails ({type(error).__name__})"
            return _answer({"error": InvalidRequest.__name__, "text": text})

    def _load(self, json: bytes, chat_template: str, special_tokens: Mapping[str, str]) -> bytes:
        tokenizer = TextTokenizer.from_parts(json, chat_template, special_tokens)
        tokenizer.table.check_decoder()
        tokenizer.try_template()
        self._tokenizer = tokenizer
        gc.collect()
        gc.freeze()
        return _answer({"vocab_hash": tokenizer.vocab_hash}, tokenizer.table.to_bytes())


def main() -> None:
    """Answer requests. One that takes more CPU time than it may ends this process by SIGPROF."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # answers alone go there
    worker = Worker()
    while sizes := sys.stdin.buffer.read(_SIZE.size):
        cpu_s, about = marshal.loads(sys.stdin.buffer.read(*_SIZE.unpack(sizes)))
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = worker.answer(about)
        signal.setitimer(signal.ITIMER_PROF, 0)
        del about
        answers.write(answer)
        answers.flush()


if __name__ == "__main__":
    main()

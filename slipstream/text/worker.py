"""Worker process: `python -m slipstream.text.worker` loads a tokenizer, then encodes prompts.

Chat templates are programs, and texts are long: they run here, within limits of CPU time and of
memory, and never where others wait. Requests come on standard input and answers go to standard
output, each a frame: two sizes, an object in JSON and bytes. It ends with its input.
"""

import gc
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, BinaryIO, NamedTuple

from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.core.request.prompt import PromptForm
from slipstream.core.request.tools import Tool
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer

MAX_MEMORY_BYTES = 768 << 20
LOAD_CPU_S = 10.0
"""CPU time to load a tokenizer and to try the chat template."""
PROMPT_CPU_S, BYTE_CPU_S = 2.0, 8e-6
SIZES = struct.Struct("<II")
"""Bytes of a frame's JSON, and of what follows it."""

Json = dict[str, Any]


class WorkerRequest(NamedTuple):
    """A request to a worker."""

    frame: bytes
    num_bytes: int
    cpu_s: float


def framed(about: Json, body: bytes = b"") -> bytes:
    """Return the frame of an object and bytes."""
    head = json.dumps(about).encode()
    return SIZES.pack(len(head), len(body)) + head + body


def load_request(
    tokenizer: bytes,
    chat_template: str,
    special_tokens: Mapping[str, str],
    *,
    cpu_s: float = LOAD_CPU_S,
) -> WorkerRequest:
    """Return the request to load a model's tokenizer and chat template, a worker's first."""
    about = {"chat_template": chat_template, "special_tokens": dict(special_tokens)}
    return _request(about, tokenizer, cpu_s)


def prompt_request(prompt: Any, form: PromptForm, **about: Any) -> WorkerRequest:
    """Return the request to encode a prompt. Its texts are no JSON, which would be written
    character by character."""
    texts: list[bytes] = []
    tools = [(tool.name, tool.description, tool.parameters) for tool in form.tools]
    about |= {
        "prompt": _packed(prompt, texts),
        "tools": _packed(tools, texts),
        "raw": form.raw,
        "allow_special_tokens": form.allow_special_tokens,
        "continue_final": form.continue_final,
        "sizes": [*map(len, texts)],
    }
    body = b"".join(texts)
    return _request(about, body, PROMPT_CPU_S + BYTE_CPU_S * len(body))


def _request(about: Json, body: bytes, cpu_s: float) -> WorkerRequest:
    return WorkerRequest(framed({"cpu_s": cpu_s, **about}, body), len(body), cpu_s)


def _packed(value: Any, texts: list[bytes]) -> Any:
    """Return a prompt's part with numbers in place of its texts, which are put into `texts`."""
    if isinstance(value, str):
        texts.append(value.encode(errors="surrogatepass"))
        return len(texts) - 1
    if isinstance(value, Mapping):
        return {"items": [_packed(item, texts) for item in value.items()]}
    return [_packed(item, texts) for item in value]


def _unpacked(value: Any, texts: Sequence[str]) -> Any:
    if isinstance(value, int):
        return texts[value]
    if isinstance(value, dict):
        return dict(_unpacked(item, texts) for item in value["items"])
    return tuple(_unpacked(item, texts) for item in value)


class Worker:
    """The tokenizer of a model, and what this process answers."""

    def __init__(self) -> None:
        self._tokenizer: TextTokenizer | None = None

    def answer(self, about: Json, body: bytes) -> bytes:
        """Return the answer to a request: to load, or to encode. Errors are answers, too."""
        try:
            if self._tokenizer is None:
                return self._load(about, body)
            ids = _encoded(self._tokenizer, about, body)
            return framed({}, struct.pack(f"<{len(ids)}I", *ids))
        except SlipstreamError as error:
            return framed({"error": type(error).__name__, "text": str(error)})
        except MemoryError:
            text = f"{MAX_MEMORY_BYTES >> 20} MiB of memory"
            return framed({"error": "MemoryError", "text": text})
        except BaseException as error:  # panics of the library are no `Exception`
            text = f"the model's tokenizer or chat template fails ({type(error).__name__})"
            return framed({"error": InvalidRequest.__name__, "text": text})

    def _load(self, about: Json, body: bytes) -> bytes:
        tokenizer = TextTokenizer.from_parts(body, about["chat_template"], about["special_tokens"])
        tokenizer.table.check_decoder()
        tokenizer.try_template()
        self._tokenizer = tokenizer
        gc.collect()
        gc.freeze()
        return framed({"vocab_hash": tokenizer.vocab_hash}, tokenizer.table.to_bytes())


def _encoded(tokenizer: TextTokenizer, about: Json, body: bytes) -> Sequence[int]:
    ends = accumulate(about["sizes"], initial=0)
    texts = [body[start:end].decode(errors="surrogatepass") for start, end in pairwise(ends)]
    form = PromptForm(
        about["raw"],
        about["allow_special_tokens"],
        tuple(Tool(*tool) for tool in _unpacked(about["tools"], texts)),
        about["continue_final"],
    )
    return encode_prompt(
        tokenizer,
        _unpacked(about["prompt"], texts),
        form,
        last_token=about["last_token"],
        max_tokens=about["max_tokens"],
    )


def main() -> None:
    """Answer requests. One that takes more CPU time than it may ends this process by SIGPROF."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # answers alone go there
    worker = Worker()
    while frame := _read(sys.stdin.buffer):
        about, body = frame
        signal.setitimer(signal.ITIMER_PROF, about["cpu_s"])
        answer = worker.answer(about, body)
        signal.setitimer(signal.ITIMER_PROF, 0)
        del frame, about, body
        answers.write(answer)
        answers.flush()


def _read(requests: BinaryIO) -> tuple[Json, bytes] | None:
    sizes = requests.read(SIZES.size)
    if len(sizes) < SIZES.size:
        return None
    num_head, num_body = SIZES.unpack(sizes)
    return json.loads(requests.read(num_head)), requests.read(num_body)


if __name__ == "__main__":
    main()

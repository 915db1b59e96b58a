"""Training text: conversations as token ids, read from JSON lines.

Kinds of line: `{"p": [...], "g": [...]}`, ids of a prompt and of what the target answered, and
`{"prompt": "..."}`, a prompt alone. Where answers may be text, `{"prompt": "...", "answer": "..."}`
and `{"messages": [...]}`, too. A directory of shards counts as one file of their lines.
"""

import gzip
import hashlib
import io
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import TrainingError, refused_as
from slipstream.files import as_text, json_lines, read_bytes, read_within

MAX_FILE_BYTES = 4 << 30
"""Largest file of training text, unpacked."""
_LOG = logging.getLogger("slipstream.train")

Encode = Callable[[Any], Sequence[int]]
"""Function that returns a prompt's ids in the chat template, up to where the answer starts."""


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation: ids [T] int32, of which the first `num_prompt` are the prompt."""

    ids: NDArray[np.int32]
    num_prompt: int

    @property
    def key(self) -> str:
        """Return the hash of the prompt: documents of one prompt share it."""
        return hashlib.sha256(self.ids[: self.num_prompt].tobytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of lines: longer ones than `max_tokens` are left out, other ids are errors.

    `encode_answer` returns the ids of an answer; None where answers may not be text.
    """

    vocab_size: int
    max_tokens: int = 1024
    encode_answer: Callable[[str], Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """Documents of one file, and the number of lines that were too long."""

    name: str
    sha256: str
    documents: tuple[Document, ...]
    num_skipped: int

    @property
    def num_tokens(self) -> int:
        """Return the number of all tokens, prompts included."""
        return sum(len(document.ids) for document in self.documents)

    @property
    def num_generated(self) -> int:
        """Return the number of tokens that the target generated."""
        return sum(len(document.ids) - document.num_prompt for document in self.documents)


def read_data(path: Path, limits: ReadLimits, *, encode: Encode) -> DataFile:
    """Read a `.jsonl` or `.jsonl.gz` file, or all finished shards of a directory.

    TrainingError names the line that cannot be used.
    """
    digest = hashlib.sha256()
    documents: list[Document] = []
    num_skipped = 0
    for part in finished_shards(path) if os.path.isdir(path) else [path]:
        raw, lines = read_lines(part)
        digest.update(hashlib.sha256(raw).digest() if os.path.isdir(path) else raw)
        items = json_lines(lines, str(part), TrainingError)
        found = [_document(item, where, limits, encode) for where, item in items]
        kept = [document for document in found if len(document.ids) <= limits.max_tokens]
        documents += kept
        num_skipped += len(found) - len(kept)
    if not documents:
        raise TrainingError(f"{path} holds no document of at most {limits.max_tokens} tokens")
    if num_skipped:
        _LOG.warning("%s: %d longer than %d tokens, left out", path, num_skipped, limits.max_tokens)
    return DataFile(path.resolve().name, digest.hexdigest(), tuple(documents), num_skipped)


def finished_shards(directory: Path) -> list[Path]:
    """Return the shards that `slipstream train data` has finished there, by number."""
    shards = sorted(directory.glob("shard-*.jsonl.gz"))
    if not shards:
        raise TrainingError(f"{directory} holds no finished shard")
    return shards


def read_lines(path: Path) -> tuple[bytes, list[str]]:
    """Return a text file as bytes and as lines, unpacked; TrainingError if it can't be read."""
    raw = read_bytes(path, refusal=TrainingError, max_bytes=MAX_FILE_BYTES)
    try:
        text = raw
        if path.suffix == ".gz":
            text = read_within(gzip.GzipFile(fileobj=io.BytesIO(raw)), MAX_FILE_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise TrainingError(f"{path} can't be read ({error})") from None
    if len(text) > MAX_FILE_BYTES:
        raise TrainingError(f"{path} has more than {MAX_FILE_BYTES} bytes when it is unpacked")
    # Only line feeds end a line of JSON: texts hold other separators as they are.
    return raw, as_text(text, str(path), TrainingError).removesuffix("\n").split("\n")


def split_heldout(documents: Sequence[Document], count: int) -> tuple[list[int], list[int]]:
    """Return indices (train, held-out), the latter of `count` answered conversations, by hash.

    Every document of a held-out conversation leaves the training set.
    """
    keys, is_answered = _conversations(documents), [len(d.ids) > d.num_prompt for d in documents]
    answered = sorted(set(compress(keys, is_answered)))
    held = set(answered[:count])
    train = [index for index, key in enumerate(keys) if key not in held]
    if len(answered) <= count:
        raise TrainingError(
            f"{len(answered)} answered prompts are too few to hold {count} out and train on others"
        )
    return train, [index for index, key in enumerate(keys) if key in held and is_answered[index]]


def _conversations(documents: Sequence[Document]) -> list[str]:
    """Return, for each document, the key of the first one of its conversation: the one with the
    shortest prompt that its own begins with."""
    keys, first, key = [""] * len(documents), b"", ""
    prompts = [document.ids[: document.num_prompt].tobytes() for document in documents]
    for index in sorted(range(len(documents)), key=prompts.__getitem__):
        if not key or not prompts[index].startswith(first):
            first, key = prompts[index], documents[index].key
        keys[index] = key
    return keys


def token_counts(documents: Sequence[Document], vocab_size: int) -> NDArray[np.int64]:
    """Return how often each id was generated, [V]; prompts count where nothing was generated."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for document in documents:
        counts += np.bincount(document.ids[document.num_prompt :], minlength=vocab_size)
    return counts


def batches(
    lengths: Sequence[int], batch_tokens: int, *, seed: int, epoch: int
) -> Iterator[list[int]]:
    """Yield one pass over all documents in batches of similar length, in an order of its own.

    Each batch padded to its longest document holds at most `batch_tokens` (or one document). Every
    pass has the same batches, so that what was computed for one serves in the next.
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    pool = max(1, 16 * batch_tokens // max(1, int(np.mean(lengths))))
    out: list[list[int]] = []
    for start in range(0, len(order), pool):
        part = sorted(order[start : start + pool].tolist(), key=lambda i: lengths[i])
        out.extend(padded_batches(part, lengths, batch_tokens))
    for index in np.random.default_rng((seed, epoch)).permutation(len(out)).tolist():
        yield out[index]


def padded_batches(
    part: Sequence[int], lengths: Sequence[int], batch_tokens: int
) -> list[list[int]]:
    """Return indices in batches of at most `batch_tokens`, padding included; sort them first."""
    out: list[list[int]] = []
    batch: list[int] = []
    for index in part:
        if batch and (len(batch) + 1) * lengths[index] > batch_tokens:
            out.append(batch)
            batch = []
        batch.append(index)
    out.append(batch)
    return out


def _document(raw: Any, where: str, limits: ReadLimits, encode: Encode) -> Document:
    text = None if limits.encode_answer is None else _text_of(raw, where)
    if text is not None and limits.encode_answer is not None:
        prompt = encoded(text[0], where, encode)
        generated = encoded(text[1], where, limits.encode_answer)
    elif isinstance(raw, dict) and isinstance(raw.get("prompt"), str):
        prompt, generated = encoded(raw["prompt"], where, encode), []
    elif isinstance(raw, dict) and isinstance(raw.get("p"), list):
        prompt, generated = raw["p"], raw.get("g", [])
    else:
        kinds = '"prompt" nor' if limits.encode_answer is None else '"prompt", "messages" nor'
        raise TrainingError(f'{where} has neither {kinds} "p" and "g"')
    try:
        ids = np.asarray(prompt + generated, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        raise TrainingError(f"{where} holds something that is no token id") from None
    if ids.ndim != 1 or not prompt or ids.min() < 0 or ids.max() >= limits.vocab_size:
        raise TrainingError(f"{where} has ids outside 0..{limits.vocab_size - 1} or no prompt")
    return Document(ids.astype(np.int32), len(prompt))


def _text_of(raw: Any, where: str) -> tuple[Any, str] | None:
    """Return the prompt and the answer of a line of text; None for a line without an answer."""
    if not isinstance(raw, dict):
        return None
    prompt, answer = raw.get("prompt"), raw.get("answer")
    if messages := raw.get("messages"):
        last = messages[-1] if isinstance(messages, list) else None
        if not isinstance(last, dict) or last.get("role") != "assistant":
            raise TrainingError(f'{where} has "messages" whose last one is not the assistant\'s')
        prompt, answer = messages[:-1], last.get("content")
    if prompt is None or answer is None:
        return None
    if not isinstance(answer, str):
        raise TrainingError(f"{where} has an answer of type {type(answer).__name__}, not text")
    return prompt, answer


def encoded(prompt: Any, where: str, encode: Encode) -> list[int]:
    """Return the ids of a text; `TrainingError` names where it can't be used."""
    with refused_as(f"{where} can't be used:", TrainingError):
        return list(encode(prompt))

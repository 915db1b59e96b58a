"""What the target says about a text, computed once and mapped from disk afterwards.

Per token: keys (after rotary) and values of the layers the draft reads, the final-normed hidden
state, all bfloat16, and the likeliest next token. Knows nothing of losses.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.core.errors import TrainingError
from slipstream.models.glide_target import target_parts
from slipstream.train.data import DataFile, Document

_INDEX = "index.json"
_HEAD_ROWS = 512
Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""


@dataclass(frozen=True, slots=True)
class FeatureSource:
    """The target that features come from: its model, name, tokenizer hash, layers to keep."""

    model: Any
    name: str
    tokenizer_hash: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FeatureStore:
    """Features of one data file: kv [N, layers, 2, kv_heads, head_dim], hidden [N, d],
    argmax [N] int32; document i owns rows starts[i] : starts[i] + its length."""

    kv: Tensor
    hidden: Tensor
    argmax: Tensor
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """B documents padded to T: ids [B, T] int64, kv per layer ([B, kv_heads, T, head_dim] twice),
    hidden [B, T, d], argmax [B, T] int64, lengths and num_prompts [B] int64."""

    ids: Tensor
    kvs: tuple[tuple[Tensor, Tensor], ...]
    hidden: Tensor
    argmax: Tensor
    lengths: Tensor
    num_prompts: Tensor


class FeatureSet:
    """Documents of several files with their stores, indexed as one sequence."""

    def __init__(self, parts: Sequence[tuple[DataFile, FeatureStore]]) -> None:
        self._where = [
            (document, store, start)
            for data, store in parts
            for document, start in zip(data.documents, store.starts, strict=True)
        ]

    @property
    def documents(self) -> list[Document]:
        """All documents in order."""
        return [document for document, _, _ in self._where]

    def batch(self, indices: Sequence[int]) -> Batch:
        """The documents at `indices`, padded on the right with id 0 and zero features."""
        picked = [self._where[index] for index in indices]
        kv = _pad([(store.kv, start, len(document.ids)) for document, store, start in picked])
        hidden = [(store.hidden, start, len(document.ids)) for document, store, start in picked]
        argmax = [(store.argmax, start, len(document.ids)) for document, store, start in picked]
        ids = [(torch.from_numpy(d.ids), 0, len(d.ids)) for d, _, _ in picked]
        return Batch(
            ids=_pad(ids).long(),
            kvs=tuple((k.contiguous(), v.contiguous()) for k, v in kv.permute(2, 3, 0, 4, 1, 5)),
            hidden=_pad(hidden),
            argmax=_pad(argmax).long(),
            lengths=torch.tensor([len(document.ids) for document, _, _ in picked]),
            num_prompts=torch.tensor([document.num_prompt for document, _, _ in picked]),
        )


def _pad(spans: Sequence[tuple[Tensor, int, int]]) -> Tensor:
    """Rows start : start + size of each tensor, zero-padded to the longest, [B, T, ...]."""
    source, longest = spans[0][0], max(size for _, _, size in spans)
    out = source.new_zeros(len(spans), longest, *source.shape[1:])
    for row, (tensor, start, size) in enumerate(spans):
        out[row, :size] = tensor[start : start + size]
    return out


def feature_store(
    source: FeatureSource, data: DataFile, directory: Path, *, progress: Progress
) -> FeatureStore:
    """The store of `data` below `directory`; computed there unless it already stands."""
    place = directory / _store_name(source, data)
    if not (place / _INDEX).is_file():
        _build(source, data, place, progress=progress)
    return _map(source, data, place, writable=False)


def _store_name(source: FeatureSource, data: DataFile) -> str:
    lengths = [len(document.ids) for document in data.documents]
    parts = [source.name, source.tokenizer_hash, data.sha256, source.layers, lengths]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return f"{data.name.split('.')[0]}-{digest}"


def _starts(data: DataFile) -> tuple[int, ...]:
    lengths = [len(document.ids) for document in data.documents]
    return tuple(int(start) for start in np.cumsum([0, *lengths[:-1]]))


def _layout(
    source: FeatureSource, num_tokens: int
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    parts, rows = target_parts(source.model), num_tokens
    heads = (parts.num_kv_heads, parts.head_dim)
    return {
        "kv": (torch.bfloat16, (rows, len(source.layers), 2, *heads)),
        "hidden": (torch.bfloat16, (rows, parts.hidden_size)),
        "argmax": (torch.int32, (rows,)),
    }


def _map(source: FeatureSource, data: DataFile, place: Path, *, writable: bool) -> FeatureStore:
    """The store's files as tensors; TrainingError when one is missing or of another size."""
    tensors = {}
    for name, (dtype, shape) in _layout(source, data.num_tokens).items():
        path, size = place / name, int(np.prod(shape))
        wanted = size * dtype.itemsize
        if not size:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        if not writable and not (path.is_file() and path.stat().st_size == wanted):
            raise TrainingError(f"{path} is missing or not {wanted} bytes long, delete {place}")
        flat = torch.from_file(str(path), shared=writable, size=size, dtype=dtype)
        tensors[name] = flat.view(shape)
    return FeatureStore(**tensors, starts=_starts(data))


@torch.inference_mode()
def _build(source: FeatureSource, data: DataFile, place: Path, *, progress: Progress) -> None:
    part = place.with_name(place.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    store, done = _map(source, data, part, writable=True), 0
    for indices in _by_length(data.documents):
        documents = [data.documents[index] for index in indices]
        kv, hidden, argmax = _run(source.model, documents, source.layers)
        for row, index in enumerate(indices):
            size = len(documents[row].ids)
            span = slice(store.starts[index], store.starts[index] + size)
            store.kv[span] = kv[row, :size]
            store.hidden[span] = hidden[row, :size]
            store.argmax[span] = argmax[row, :size]
            done += size
        progress(done, data.num_tokens)
    (part / _INDEX).write_text(json.dumps({"data": data.name, "sha256": data.sha256}))
    os.replace(part, place)


def _by_length(documents: Sequence[Document], budget: int = 4096) -> list[list[int]]:
    out: list[list[int]] = [[]]
    for index in sorted(range(len(documents)), key=lambda i: len(documents[i].ids)):
        if out[-1] and (len(out[-1]) + 1) * len(documents[index].ids) > budget:
            out.append([])
        out[-1].append(index)
    return out


def _run(
    model: Any, documents: Sequence[Document], layers: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """kv [B, T, layers, 2, kv_heads, head_dim], hidden [B, T, d], argmax [B, T]."""
    spans = [(torch.from_numpy(document.ids), 0, len(document.ids)) for document in documents]
    result = model.get_decoder()(input_ids=_pad(spans).long(), use_cache=True)
    cache, head = result.past_key_values.layers, model.get_output_embeddings()
    hidden: Tensor = result.last_hidden_state
    pairs = [torch.stack((cache[i].keys, cache[i].values)) for i in layers]
    shape = (0, 2, *cache[0].keys.shape)  # of a draft that reads no layers
    kv = (torch.stack(pairs) if pairs else hidden.new_empty(shape)).permute(2, 4, 0, 1, 3, 5)
    argmax = [_argmax(head(rows)) for rows in hidden.flatten(0, 1).split(_HEAD_ROWS)]
    return kv, hidden, torch.cat(argmax).view(hidden.shape[:2])


def _argmax(scores: Tensor) -> Tensor:
    """`argmax(-1)` of [R, V], block maxima first: several times faster than one long reduction."""
    block = 64
    if scores.shape[-1] % block:
        return scores.argmax(-1)
    blocks = scores.unflatten(-1, (-1, block))
    best = blocks.amax(-1).argmax(-1)
    inner = blocks[torch.arange(len(scores)), best].argmax(-1)
    out: Tensor = best * block + inner
    return out

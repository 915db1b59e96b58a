"""Features on disk: computed once, mapped from there afterwards, within a budget of bytes.

A store holds the first documents of one data file, with the layers that a draft reads.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from slipstream.core.errors import TrainingError
from slipstream.models.glide.torch_parts import model_parts
from slipstream.train.data import DataFile, Document, padded_batches
from slipstream.train.features import FeatureSource, FeatureStore, compute_features

_BATCH_TOKENS = 4096
Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""


def feature_stores(
    source: FeatureSource,
    files: Sequence[DataFile],
    directory: Path,
    *,
    max_bytes: float,
    progress: Progress,
) -> list[FeatureStore | None]:
    """Return a store for each file below `directory`, computed unless the same stands there.

    In the order of the files each takes what it needs of `max_bytes`; where that ends, a store
    holds the first documents only, and files after it have none.
    """
    row_bytes = sum(dtype.itemsize * int(np.prod(s)) for dtype, s in _layout(source, 1).values())
    stores: list[FeatureStore | None] = []
    for data in files:
        ends = np.cumsum([len(document.ids) for document in data.documents])
        wanted = int(np.searchsorted(ends, max_bytes / row_bytes, side="right"))
        if not wanted:
            stores.append(None)
            continue
        place = _build(source, data, wanted, directory, progress=progress)
        documents = data.documents[:wanted]
        tensors = _map(source, documents, place)
        stores.append(FeatureStore(**tensors, starts=_starts(documents)))
        max_bytes -= row_bytes * int(ends[wanted - 1])
    return stores


def _identity(source: FeatureSource, data: DataFile) -> dict[str, Any]:
    """Return what must be equal for a store to be of this target and text."""
    lengths = [len(document.ids) for document in data.documents]
    return {
        "target": source.name,
        "tokenizer_hash": source.tokenizer_hash,
        "data": data.name,
        "sha256": data.sha256,
        "lengths": _digest(lengths),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _starts(documents: Sequence[Document]) -> tuple[int, ...]:
    lengths = [len(document.ids) for document in documents]
    return tuple(int(start) for start in np.cumsum([0, *lengths[:-1]]))


def _layout(
    source: FeatureSource, num_tokens: int
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    parts, rows = model_parts(source.model), num_tokens
    heads = (parts.num_kv_heads, parts.head_dim)
    return {
        "kv": (torch.bfloat16, (rows, len(source.layers), 2, *heads)),
        "hidden": (torch.bfloat16, (rows, parts.hidden_size)),
        "argmax": (torch.int32, (rows,)),
    }


def _map(
    source: FeatureSource, documents: Sequence[Document], place: Path, *, writable: bool = False
) -> dict[str, Tensor]:
    """Return the store's files as tensors; TrainingError when one is missing or of another size."""
    tensors = {}
    num_tokens = sum(len(document.ids) for document in documents)
    for name, (dtype, shape) in _layout(source, num_tokens).items():
        path, size = place / name, int(np.prod(shape))
        wanted = size * dtype.itemsize
        if not size:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        if not writable and not (path.is_file() and path.stat().st_size == wanted):
            raise TrainingError(f"{path} is missing or not {wanted} bytes long, delete {place}")
        flat = torch.from_file(str(path), shared=writable, size=size, dtype=dtype)
        tensors[name] = flat.view(shape)
    return tensors


def _build(
    source: FeatureSource, data: DataFile, wanted: int, directory: Path, *, progress: Progress
) -> Path:
    """Return the store of the first `wanted` documents, which is computed where there is none."""
    record = _identity(source, data) | {"layers": source.layers, "num_documents": wanted}
    place = directory / f"{data.name.split('.')[0]}-{_digest(record)}"
    part = place.with_name(place.name + ".part")
    directory.mkdir(parents=True, exist_ok=True)
    # Another run may compute it: then this one waits and takes the result.
    with FileLock(f"{place}.lock"):
        if not place.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            _fill(source, data.documents[:wanted], part, progress=progress)
            os.replace(part, place)
    return place


def _fill(
    source: FeatureSource, documents: Sequence[Document], part: Path, *, progress: Progress
) -> None:
    """Compute the features of `documents` into files below `part`."""
    tensors, starts = _map(source, documents, part, writable=True), _starts(documents)
    lengths = [len(document.ids) for document in documents]
    done, total = 0, sum(lengths)
    ordered = sorted(range(len(lengths)), key=lengths.__getitem__)
    for indices in padded_batches(ordered, lengths, _BATCH_TOKENS):
        picked = [documents[index] for index in indices]
        for index, found in zip(indices, compute_features(source, picked), strict=True):
            rows = slice(starts[index], starts[index] + len(found.argmax))
            for column, pair in enumerate(found.kvs):
                tensors["kv"][rows, column] = torch.stack(pair, 1)
            tensors["hidden"][rows] = found.hidden
            tensors["argmax"][rows] = found.argmax
            done += len(found.argmax)
        progress(done, total)

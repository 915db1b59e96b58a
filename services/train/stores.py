"""Features on disk: computed once, mapped from there afterwards, within a budget of bytes.

A store holds the first documents of one data file, and serves every draft that reads some of its
layers.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

_INDEX = "index.json"
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
    """Return a store for each file below `directory`, computed unless one stands there that serves.

    In the order of the files each takes what it needs of `max_bytes`; where that ends, a store
    holds the first documents only, and files after it have none.
    """
    row_bytes = sum(dtype.itemsize * int(np.prod(s)) for dtype, s in _layout(source, 1).values())
    stores: list[FeatureStore | None] = []
    for data in files:
        ends = np.cumsum([len(document.ids) for document in data.documents])
        wanted = int(np.searchsorted(ends, max_bytes / row_bytes, side="right"))
        found = _find(source, data, directory, wanted)
        if found is None and wanted:
            found = _build(source, data, wanted, directory, progress=progress)
        stores.append(None if found is None else found.opened(source))
        max_bytes -= row_bytes * int(ends[min(wanted, len(ends)) - 1]) if found else 0
    return stores


@dataclass(frozen=True, slots=True)
class _Place:
    """A finished store: where it is, the layers in it, and the documents that it holds."""

    path: Path
    layers: tuple[int, ...]
    documents: tuple[Document, ...]

    def rank(self) -> tuple[int, int, Path]:
        """Return the rank, best lowest: few layers lie close together, many documents save work."""
        return len(self.layers), -len(self.documents), self.path

    def opened(self, source: FeatureSource) -> FeatureStore:
        """Return it mapped, for the layers of `source`."""
        tensors = _map(replace(source, layers=self.layers), self.documents, self.path)
        columns = tuple(self.layers.index(layer) for layer in source.layers)
        return FeatureStore(**tensors, starts=_starts(self.documents), columns=columns)


def _find(source: FeatureSource, data: DataFile, directory: Path, wanted: int) -> _Place | None:
    """Return the best store that serves at least `wanted` documents, at least one."""
    places = []
    for index in directory.glob(f"*/{_INDEX}"):
        record = json.loads(index.read_text(encoding="utf-8"))
        layers, count = tuple(record.pop("layers", ())), record.pop("num_documents", 0)
        serves = set(layers) >= set(source.layers) and count >= max(1, wanted)
        if serves and record == _identity(source, data):
            places.append(_Place(index.parent, layers, data.documents[:count]))
    return min(places, key=_Place.rank, default=None)


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
) -> _Place:
    """Compute the store of the first `wanted` documents."""
    record = _identity(source, data) | {"layers": source.layers, "num_documents": wanted}
    place = directory / f"{data.name.split('.')[0]}-{_digest(record)}"
    part = place.with_name(place.name + ".part")
    directory.mkdir(parents=True, exist_ok=True)
    # Another run may compute it: then this one waits and takes the result.
    with FileLock(f"{place}.lock"):
        if not (place / _INDEX).is_file():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            _fill(source, data.documents[:wanted], part, progress=progress)
            (part / _INDEX).write_text(json.dumps(record), encoding="utf-8")
            os.replace(part, place)
    return _Place(place, source.layers, data.documents[:wanted])


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

"""Features of a text, computed by the target, and batches of them.

Per token: keys (after rotary) and values of the layers the draft reads, the final-normed hidden
state, all bfloat16, and the likeliest next token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.core.errors import TrainingError
from slipstream.train.data import DataFile, Document

_HEAD_ROWS = {"cpu": 512}
_MANY_HEAD_ROWS = 8192
LENGTHS_ON_GPU = 32
"""Multiple of tokens that batches are padded to on a GPU: its kernels of attention are aligned."""


def best_columns(scores: Tensor) -> Tensor:
    """Return `argmax(-1)` of [R, V], block maxima first: faster than one long reduction."""
    block = 64
    if scores.shape[-1] % block:
        return scores.argmax(-1)
    blocks = scores.unflatten(-1, (-1, block))
    best = blocks.amax(-1).argmax(-1)
    inner = blocks[torch.arange(len(scores), device=scores.device), best].argmax(-1)
    out: Tensor = best * block + inner
    return out


@dataclass(frozen=True, slots=True)
class FeatureSource:
    """The target that features come from: its model, name, tokenizer hash, layers to keep."""

    model: Any
    name: str
    tokenizer_hash: str
    layers: tuple[int, ...]


class Features(NamedTuple):
    """Features of T tokens: keys and values of each layer, [T, kv_heads, head_dim]
    twice, hidden [T, d], argmax [T]."""

    kvs: tuple[tuple[Tensor, Tensor], ...]
    hidden: Tensor
    argmax: Tensor


@dataclass(frozen=True, slots=True)
class FeatureStore:
    """Features of a data file's first documents: kv [N, layers, 2, kv_heads, head_dim],
    hidden [N, d], argmax [N] int32; document i owns rows starts[i] : starts[i] + its length."""

    kv: Tensor
    hidden: Tensor
    argmax: Tensor
    starts: tuple[int, ...]

    def features(self, number: int, size: int) -> Features:
        """Return those of document `number`, which has `size` tokens; nothing is copied."""
        rows = slice(self.starts[number], self.starts[number] + size)
        kv = self.kv[rows]
        pairs = tuple((kv[:, column, 0], kv[:, column, 1]) for column in range(kv.shape[1]))
        return Features(pairs, self.hidden[rows], self.argmax[rows])


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """B documents padded to T: ids [B, T] int64, kv per layer ([B, kv_heads, T, head_dim] twice),
    hidden [B, T, d], argmax [B, T] int64, lengths and num_prompts [B] int64."""

    ids: Tensor
    kvs: tuple[tuple[Tensor, Tensor], ...]
    hidden: Tensor
    argmax: Tensor
    lengths: Tensor
    num_prompts: Tensor


def has_room(device: torch.device) -> bool:
    """Return whether features may stay on a device: on a GPU with half of its memory free."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return free >= total / 2


class FeatureSet:
    """Documents of several files with their stores, indexed as one sequence.

    What a store does not hold is computed by `source`, in the batch that needs it. A batch stays
    for its next use where `has_room` says so of its device.
    """

    def __init__(
        self,
        parts: Sequence[tuple[DataFile, FeatureStore | None]],
        source: FeatureSource | None = None,
        *,
        has_room: Callable[[torch.device], bool] = has_room,
    ) -> None:
        self._source = source
        self._has_room = has_room
        self._staying: dict[tuple[int, ...], TrainBatch] = {}
        self._where = [
            (document, store if store and number < len(store.starts) else None, number)
            for data, store in parts
            for number, document in enumerate(data.documents)
        ]
        self.documents = tuple(document for document, _, _ in self._where)
        """All documents in order."""

    def batch(self, indices: Sequence[int]) -> TrainBatch:
        """Return the documents at `indices`, padded on the right with id 0.

        Where none of them has stored features, the batch is on the target's device.
        """
        key = tuple(indices)
        if (batch := self._staying.get(key)) is None:
            batch = self._made(indices)
            if self._has_room(batch.ids.device):
                self._staying[key] = batch
        return batch

    def _made(self, indices: Sequence[int]) -> TrainBatch:
        picked = [self._where[index] for index in indices]
        if not any(store for _, store, _ in picked):
            return _read(self._required(len(picked)), [document for document, _, _ in picked])
        computed = self._computed([document for document, store, _ in picked if store is None])
        features = [
            next(computed) if store is None else store.features(number, len(document.ids))
            for document, store, number in picked
        ]
        documents = [document for document, _, _ in picked]
        return TrainBatch(
            ids=padded_ids(documents),
            kvs=_padded_kvs([found.kvs for found in features], max(map(_size, documents))),
            hidden=_pad([found.hidden for found in features]),
            argmax=_pad([found.argmax for found in features]).long(),
            lengths=torch.tensor([len(document.ids) for document in documents]),
            num_prompts=torch.tensor([document.num_prompt for document in documents]),
        )

    def _computed(self, documents: Sequence[Document]) -> Iterator[Features]:
        if not documents:
            return iter(())
        return iter(compute_features(self._required(len(documents)), documents))

    def _required(self, count: int) -> FeatureSource:
        if self._source is None:
            raise TrainingError(f"{count} documents of the batch have no features")
        return self._source


def padded_ids(documents: Sequence[Document]) -> Tensor:
    """Return token ids [B, T] int64, 0 where a document has ended."""
    return _pad([torch.from_numpy(document.ids) for document in documents]).long()


def _size(document: Document) -> int:
    return len(document.ids)


def _pad(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors [T_i, ...] zero-padded to the longest, [B, T, ...]."""
    longest = max(len(part) for part in parts)
    out = parts[0].new_zeros(len(parts), longest, *parts[0].shape[1:])
    for row, part in enumerate(parts):
        out[row, : len(part)] = part
    return out


def _padded_kvs(
    parts: Sequence[tuple[tuple[Tensor, Tensor], ...]], longest: int
) -> tuple[tuple[Tensor, Tensor], ...]:
    """[T_i, kv_heads, head_dim] per document and layer -> [B, kv_heads, T, head_dim] per layer,
    in one copy."""
    out = []
    for layer in zip(*parts, strict=True):
        heads, width = layer[0][0].shape[1:]
        pair = [pair.new_zeros(len(layer), heads, longest, width) for pair in layer[0]]
        for row, found in enumerate(layer):
            for into, part in zip(pair, found, strict=True):
                into[row, :, : len(part)] = part.transpose(0, 1)
        out.append((pair[0], pair[1]))
    return tuple(out)


def compute_features(source: FeatureSource, documents: Sequence[Document]) -> list[Features]:
    """Return the features of each document, on the CPU, by one forward of all of them."""
    batch = _read(source, documents)
    pairs = [(_stored(keys), _stored(values)) for keys, values in batch.kvs]
    hidden, argmax = batch.hidden.cpu(), batch.argmax.int().cpu()
    out = []
    for row, document in enumerate(documents):
        size = len(document.ids)
        kvs = tuple((keys[row, :size], values[row, :size]) for keys, values in pairs)
        out.append(Features(kvs, hidden[row, :size], argmax[row, :size]))
    return out


@torch.no_grad()
def _read(source: FeatureSource, documents: Sequence[Document]) -> TrainBatch:
    """Return the documents as a batch on the target's device, by one forward."""
    model = source.model
    ids = padded_ids(documents).to(model.device)
    if ids.is_cuda:
        ids = F.pad(ids, (0, -ids.shape[1] % LENGTHS_ON_GPU))
    result = model.get_decoder()(input_ids=ids, use_cache=True)
    cache, hidden = result.past_key_values.layers, result.last_hidden_state
    head = model.get_output_embeddings()
    size = _HEAD_ROWS.get(ids.device.type, _MANY_HEAD_ROWS)
    scores = (head(rows) for rows in hidden.flatten(0, 1).split(size))
    argmax = torch.cat([best_columns(rows) for rows in scores]).view(ids.shape)
    sizes = [(len(document.ids), document.num_prompt) for document in documents]
    lengths, num_prompts = torch.tensor(sizes, device=ids.device).unbind(1)
    beyond = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]
    pairs = [(cache[at].keys, cache[at].values) for at in source.layers]
    cut = beyond[:, None, :, None]
    return TrainBatch(
        ids=ids,
        kvs=tuple((_kept(keys, cut), _kept(values, cut)) for keys, values in pairs),
        hidden=_kept(hidden, beyond[..., None]),
        argmax=argmax.masked_fill_(beyond, 0),
        lengths=lengths,
        num_prompts=num_prompts,
    )


def _kept(part: Tensor, beyond: Tensor) -> Tensor:
    """Return `part` as stores hold it, with zeros where documents have ended."""
    return part.to(torch.bfloat16).masked_fill(beyond, 0)


def _stored(part: Tensor) -> Tensor:
    """[B, kv_heads, T, head_dim] -> [B, T, kv_heads, head_dim], as stores hold it."""
    return part.transpose(1, 2).cpu()

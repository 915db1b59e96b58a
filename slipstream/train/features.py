"""Features of a text, computed by the target, in batches.

Per token: keys (after rotary) and values of the layers that a draft reads, or the hidden states
that go into them, the final-normed hidden state, all bfloat16, and the likeliest next token.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.memory import free_bytes
from slipstream.train.data import DataFile, Document

_ROWS = {"cpu": 256}
"""Rows whose scores are alive at once: on a CPU the [rows, V_d] block then stays in cache."""
_MANY_ROWS = 4096
LENGTHS_ON_GPU = 32
"""Multiple of tokens that batches are padded to on a GPU: its kernels of attention are aligned."""


def row_blocks(rows: Tensor) -> list[slice]:
    """Return slices that cover the first dimension, each small enough for its device."""
    size = _ROWS.get(rows.device.type, _MANY_ROWS)
    return [slice(start, start + size) for start in range(0, len(rows), size)]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """B documents padded to T: ids [B, T] int64, kv per layer ([B, kv_heads, T, head_dim] twice),
    hidden [B, T, d], argmax [B, T] int64, lengths and num_prompts [B] int64; states: the inputs of
    layers side by side [B, T, layers * d], where they are read."""

    ids: Tensor
    kvs: tuple[tuple[Tensor, Tensor], ...]
    hidden: Tensor
    argmax: Tensor
    lengths: Tensor
    num_prompts: Tensor
    states: Tensor | None = None


def has_room(device: torch.device) -> bool:
    """Return whether features may stay on a device: where half of its memory is free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
    else:
        free = free_bytes("cpu")
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return free >= total / 2


class FeatureSet:
    """Documents of several files, indexed as one sequence.

    Features are computed in the batch that needs them, by the target and on its device. A batch
    stays for its next use where `has_room` says so. Of `layers` keys and values are read, of
    `inputs` the hidden states that go into them.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        target: Any,
        layers: Sequence[int],
        *,
        inputs: Sequence[int] = (),
        has_room: Callable[[torch.device], bool] = has_room,
    ) -> None:
        self._target, self._layers, self._inputs = target, layers, inputs
        self._has_room = has_room
        self._staying: dict[tuple[int, ...], TrainBatch] = {}
        self.documents = tuple(document for data in files for document in data.documents)
        """All documents in order."""

    def batch(self, indices: Sequence[int]) -> TrainBatch:
        """Return the documents at `indices`, padded on the right with id 0."""
        key = tuple(indices)
        if (batch := self._staying.get(key)) is None:
            documents = [self.documents[index] for index in indices]
            batch = _read(self._target, self._layers, self._inputs, documents)
            if self._has_room(batch.ids.device):
                self._staying[key] = batch
        return batch


@torch.no_grad()
def _read(
    model: Any, layers: Sequence[int], inputs: Sequence[int], documents: Sequence[Document]
) -> TrainBatch:
    """Return the documents as a batch on the target's device, by one forward."""
    parts = [torch.from_numpy(document.ids).long() for document in documents]
    ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).to(model.device)
    if ids.is_cuda:
        ids = F.pad(ids, (0, -ids.shape[1] % LENGTHS_ON_GPU))
    result = model.get_decoder()(
        input_ids=ids, use_cache=bool(layers), output_hidden_states=bool(inputs)
    )
    hidden = result.last_hidden_state
    head = model.get_output_embeddings()
    states = hidden.flatten(0, 1)
    scores = (head(states[rows]) for rows in row_blocks(states))
    argmax = torch.cat([rows.argmax(-1) for rows in scores]).view(ids.shape)
    sizes = [(len(document.ids), document.num_prompt) for document in documents]
    lengths, num_prompts = torch.tensor(sizes, device=ids.device).unbind(1)
    beyond = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]
    caches = [result.past_key_values.layers[layer] for layer in layers]
    cut = beyond[:, None, :, None]
    states = [_kept(result.hidden_states[layer], beyond[..., None]) for layer in inputs]
    return TrainBatch(
        ids=ids,
        kvs=tuple((_kept(own.keys, cut), _kept(own.values, cut)) for own in caches),
        hidden=_kept(hidden, beyond[..., None]),
        argmax=argmax.masked_fill_(beyond, 0),
        lengths=lengths,
        num_prompts=num_prompts,
        states=torch.cat(states, -1) if states else None,
    )


def _kept(part: Tensor, beyond: Tensor) -> Tensor:
    """Return `part` in bfloat16, with zeros where documents have ended."""
    return part.to(torch.bfloat16).masked_fill(beyond, 0)

"""transformers' own `generate`, on weights that nothing was swapped in: what everybody has."""

import time
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from slipstream.bench.figures import Reply
from slipstream.core.results import Timings
from slipstream.core.types import SamplingParams


class GenerateTalk:
    """A conversation by `generate`, which caches nothing from turn to turn."""

    def __init__(self, model: Any, stop_token_ids: Set[int], sampling: SamplingParams) -> None:
        """Of `sampling`, temperature and seed are used; the noise is transformers' own."""
        self._model = model
        self._stop_token_ids = sorted(stop_token_ids)
        self._sampling = sampling
        self._tokens: list[int] = []

    def reply(self, prompt: Sequence[int], max_tokens: int) -> Reply:
        """See `Talk.reply`."""
        self._tokens += prompt
        tokens = torch.tensor([self._tokens], device=self._model.device)
        watch = _Watch()
        torch.manual_seed(self._sampling.seed % 2**63)
        with torch.inference_mode():
            out = self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                generation_config=self._config(max_tokens),
                streamer=watch,
            )
        end = time.perf_counter()
        reply = tuple(out[0, len(self._tokens) :].tolist())
        self._tokens += reply
        return Reply(reply, watch.timings(end))

    def close(self) -> None:
        """See `Talk.close`."""
        self._tokens = []

    def _config(self, max_tokens: int) -> GenerationConfig:
        is_greedy = self._sampling.is_greedy
        law = {} if is_greedy else {"temperature": self._sampling.temperature, "top_k": 0}
        ends = self._stop_token_ids
        return GenerationConfig(
            do_sample=not is_greedy,
            max_new_tokens=max_tokens,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else None,
            **law,
        )


class _Watch:
    """A streamer that keeps the time of the first token; `generate` puts the prompt before."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._puts: int = 0
        self._first = self._start

    def put(self, value: Tensor) -> None:
        self._puts += 1
        if self._puts == 2:
            self._first = time.perf_counter()

    def end(self) -> None:
        """Nothing is held back."""

    def timings(self, end: float) -> Timings:
        return Timings(self._first - self._start, end - self._first, 0.0, 0.0)

"""transformers' `generate`: plain, with prompt lookup, or with an assistant model."""

import os
from importlib.metadata import version
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig

from slipstream.bench.peers.engine import (
    EngineAnswer,
    EngineSettings,
    EngineUnderTest,
    ProcessFacts,
    Prompts,
)
from slipstream.bench.peers.plan import PeerMode
from slipstream.models.loading import load_target_parts, require_same_tokenizer


class TransformersEngine(EngineUnderTest):
    """One mode of `generate`. Several prompts are a batch, padded on the left, where that goes."""

    def __init__(self, settings: EngineSettings) -> None:
        torch.set_num_threads(settings["threads"])
        options = {"dtype": settings["dtype"], "device": settings["device"]}
        loaded = load_target_parts(settings["target"], **options)
        self._model: Any = loaded.model
        self._stop_ids = sorted(loaded.stop_token_ids)
        self._mode = PeerMode(settings["mode"])
        self._lookup_tokens: int = settings["lookup_tokens"]
        self._assistant: Any = None
        if self._mode is PeerMode.ASSISTANT:
            assistant = load_target_parts(settings["assistant"], **options)
            require_same_tokenizer(loaded, assistant)
            self._assistant = assistant.model
        self._num_forwards = 0
        self._model.register_forward_hook(self._count)

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[EngineAnswer]:
        """See `EngineUnderTest`. Modes that speculate take one prompt at a time."""
        if self._mode is PeerMode.PLAIN:
            return self._together(prompts, max_new_tokens)
        return [at for ids in prompts for at in self._together([ids], max_new_tokens)]

    def facts(self) -> ProcessFacts:
        """See `EngineUnderTest`."""
        settings: dict[str, Any] = {"threads": torch.get_num_threads()}
        if self._mode is PeerMode.LOOKUP:
            settings["prompt_lookup_num_tokens"] = self._lookup_tokens
        versions = {"transformers": transformers.__version__, "torch": version("torch")}
        return ProcessFacts((os.getpid(),), versions, settings)

    def _together(self, prompts: Prompts, max_new_tokens: int) -> list[EngineAnswer]:
        self._num_forwards = 0
        tokens, mask = self._padded(prompts)
        with torch.inference_mode():
            out = self._model.generate(
                tokens,
                attention_mask=mask,
                generation_config=self._config(max_new_tokens),
                assistant_model=self._assistant,
            )
        width = tokens.shape[1]
        return [self._answer(row) for row in out[:, width:].tolist()]

    def _count(self, *_: object) -> None:
        self._num_forwards += 1

    def _padded(self, prompts: Prompts) -> tuple[Tensor, Tensor]:
        width = max(map(len, prompts))
        pad = self._stop_ids[0] if self._stop_ids else 0
        rows = [[pad] * (width - len(ids)) + list(ids) for ids in prompts]
        masks = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        device = self._model.device
        return torch.tensor(rows, device=device), torch.tensor(masks, device=device)

    def _answer(self, row: list[int]) -> EngineAnswer:
        """A reply up to its own end: what follows is padding."""
        ends = [index + 1 for index, token in enumerate(row) if token in self._stop_ids]
        reply = tuple(row[: min(ends, default=len(row))])
        return EngineAnswer(len(reply), reply, num_forwards=self._num_forwards)

    def _config(self, max_new_tokens: int) -> GenerationConfig:
        ends = self._stop_ids
        lookup = self._lookup_tokens if self._mode is PeerMode.LOOKUP else None
        return GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else None,
            prompt_lookup_num_tokens=lookup,
        )

"""llama.cpp through llama-cpp-python: plain, or with its prompt-lookup draft.

`Llama.generate` is called, which is all of its decoding and none of its text: the least that a
user of the library pays.
"""

import os
from importlib import import_module
from typing import Any

from slipstream.bench.peers.engine import (
    EngineAnswer,
    EngineSettings,
    EngineUnderTest,
    ProcessFacts,
    Prompts,
)
from slipstream.bench.peers.plan import PeerMode

_ROOM = 256
"""Contexts are a multiple of this."""
_MARGIN = 32


class _Counting:
    """Draft model that counts its calls: one after each of the target's forwards."""

    def __init__(self, draft: Any) -> None:
        self._draft = draft
        self.num_calls = 0

    def __call__(self, input_ids: Any, /, **options: Any) -> Any:
        self.num_calls += 1
        return self._draft(input_ids, **options)


class LlamaEngine(EngineUnderTest):
    """One model file, one prompt after the other."""

    def __init__(self, settings: EngineSettings) -> None:
        # By name: it is optional, and types of it are not to decide whether ours are right.
        self._library: Any = import_module("llama_cpp")
        self._lookup_tokens: int = settings["llama_lookup_tokens"]
        self._draft: _Counting | None = None
        if settings["mode"] == PeerMode.LOOKUP:
            lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
            self._draft = _Counting(lookup(num_pred_tokens=self._lookup_tokens))
        self._repacks: bool = settings["llama_repack"]
        if not self._repacks:
            _switch_off_repacking(self._library.llama_cpp)
        num_slots = settings["num_positions"] + _MARGIN
        self._threads: int = settings["threads"]
        self._llama: Any = self._library.Llama(
            settings["gguf"],
            n_ctx=-(-num_slots // _ROOM) * _ROOM,
            n_threads=self._threads,
            n_threads_batch=self._threads,
            draft_model=self._draft,
            # With a draft it keeps the logits of every token, but makes room only with this.
            logits_all=self._draft is not None,
            verbose=False,
        )
        self._vocab = self._library.llama_model_get_vocab(self._llama.model)

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[EngineAnswer]:
        """See `EngineUnderTest`."""
        return [self._one(prompt, max_new_tokens) for prompt in prompts]

    def facts(self) -> ProcessFacts:
        """See `EngineUnderTest`."""
        settings: dict[str, Any] = {"threads": self._threads, "use_extra_bufts": self._repacks}
        if self._draft is not None:
            settings["num_pred_tokens"] = self._lookup_tokens
        versions = {"llama-cpp-python": self._library.__version__}
        return ProcessFacts((os.getpid(),), versions, settings)

    def close(self) -> None:
        """See `EngineUnderTest`."""
        self._llama.close()

    def _one(self, prompt: Any, max_new_tokens: int) -> EngineAnswer:
        self._llama.reset()  # or this prompt may be cached
        if self._draft is not None:
            self._draft.num_calls = 0
        reply: list[int] = []
        for token in self._llama.generate(list(prompt), temp=0.0, repeat_penalty=1.0):
            reply.append(int(token))
            if len(reply) == max_new_tokens or self._is_end(token):
                break
        forwards = len(reply) if self._draft is None else self._draft.num_calls + 1
        return EngineAnswer(len(reply), tuple(reply), num_forwards=forwards)

    def _is_end(self, token: int) -> bool:
        return bool(self._library.llama_vocab_is_eog(self._vocab, token))


def _switch_off_repacking(library: Any) -> None:
    """Change this process's defaults, from which `Llama` starts: it takes no such option."""
    defaults = library.llama_model_default_params

    def without() -> Any:
        params = defaults()
        params.use_extra_bufts = False
        return params

    library.llama_model_default_params = without

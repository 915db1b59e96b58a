"""Costs of engines of random weights, in the shape of a published model, by torch."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from slipstream.bench.cost import CostPlan, launches, measure_cost
from slipstream.bench.harness import Advance
from slipstream.bench.load import NUM_REPEATS, LoadPlan, measure_rounds
from slipstream.client import AsyncClient
from slipstream.client.embedded import AsyncEmbedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import InvalidRequest
from slipstream.drafting.build import DraftModel
from slipstream.engine.thread import EngineThread
from slipstream.models.cuda.graphs import num_captures
from slipstream.models.cuda.layers import scale_linears
from slipstream.models.dtypes import CPU, FP8, choose_dtype
from slipstream.models.format.tokenizer import NumberedTokenizer, fitted
from slipstream.models.glide.glide_init import (
    GlideShape,
    config_for_target,
    init_from_target,
    save_glide,
)
from slipstream.models.loaded import find_source, made_of, parse_device
from slipstream.models.native.checkpoint import CONFIG
from slipstream.models.native.library import has_kernels
from slipstream.models.threads import set_num_threads
from slipstream.models.torch.arrays import start_torch, torch_dtype
from slipstream.models.torch.loading import require_causal
from slipstream.text.tokenizer import TextTokenizer

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "tie_word_embeddings")
_SHAPES = {"llama-3.2-1b": (2048, 8192, 16, True), "llama-3-8b": (4096, 14336, 32, False)}
"""Published `_SIZES`."""
_OF_ALL = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
_LAYERS, _HEAD, _LAG = 3, 8192, 8
"""Layers of a random target that its draft reads, columns of the draft's head, and its lag."""
_END, _TEMPLATE = "<end>", "{{ messages[-1].content }}"
_NUM_BYTES = 256


def measure_shape(
    plan: CostPlan, shape: str, options: EngineOptions, *, advance: Advance
) -> dict[str, Any]:
    """Return `measure_cost` of random weights, `measure_rounds` of their engines, and how many
    forwards and chains were captured before these, and in them."""
    thread = EngineThread("slipstream-engine")
    engine, draft = thread.call(partial(_random_engine, shape, options))
    engines = AsyncEmbedded(engine, thread.call(draft.drafter), thread)
    ready, kernels = num_captures(), partial(launches, options.device)
    sent = LoadPlan(plan.sessions, 1, NUM_REPEATS, plan.rounds + 1)

    async def measured() -> dict[str, Any]:
        async with AsyncClient.of(engines) as client:
            return await measure_rounds(sent, client, plan.context, kernels, advance=advance)

    rounds = asyncio.run(measured())
    captures = {"ready": ready, "later": num_captures() - ready}
    costs = measure_cost(plan, engine.model, list(range(1, _NUM_BYTES)), draft)
    return {**costs, "rounds": rounds, "captures": captures, "dtype": engine.dtype}


def _random_engine(shape: str, options: EngineOptions) -> tuple[Engine, DraftModel]:
    """Return a target of random weights and a GliDe draft that starts from its last layers: times
    do not depend on weights, but acceptance does. Texts are read byte by byte.

    Raises `InvalidRequest` for a shape that is neither published nor in a directory.
    """
    if options.threads is not None:
        set_num_threads(options.threads)
    model = _random_model(shape, options)
    sizes = model.config.get_text_config()
    tokenizer = fitted(_byte_tokenizer(), Path(shape), sizes.vocab_size)
    loaded = made_of(shape, Path(shape), model, tokenizer, frozenset())
    last = sizes.num_hidden_layers
    draft = GlideShape(tuple(range(max(last - _LAYERS, 0), last)), _HEAD, _LAG)
    config = config_for_target(
        model, draft, name=loaded.model_id, tokenizer_hash=loaded.tokenizer_hash
    )
    with TemporaryDirectory() as folder:
        save_glide(init_from_target(model, config), torch.arange(config.head_size), Path(folder))
        if options.dtype == FP8:
            scale_linears(model, str(model.device), head=model.get_output_embeddings())
        if options.device == CPU and has_kernels():  # native code reads weights from files
            files = Path(folder) / "target"
            model.save_pretrained(files)
            loaded = replace(loaded, model=find_source(files, None, options.dtype, CPU))
        engine = Engine(loaded, options)
        return engine, engine.draft_model(folder)


def _random_model(shape: str, options: EngineOptions) -> PreTrainedModel:
    if shape in _SHAPES:
        sizes: dict[str, Any] = _OF_ALL | dict(zip(_SIZES, _SHAPES[shape], strict=True))
        config = LlamaConfig(**sizes)
    elif (Path(shape) / CONFIG).is_file():
        config = require_causal(Path(shape))
    else:
        known = f"{', '.join(_SHAPES)} or a directory with a {CONFIG}"
        raise InvalidRequest(f"the shape is {shape!r}, but must be {known}")
    start_torch()
    device = parse_device(options.device)
    with torch.device(device):
        dtype = torch_dtype(choose_dtype(options.dtype, device))
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.requires_grad_(False).eval()
    return model


def _byte_tokenizer() -> NumberedTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([_END, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([_END])
    parts = backend.to_str().encode(), _TEMPLATE, {"eos_token": _END}
    return NumberedTokenizer.of(TextTokenizer.from_parts(*parts))

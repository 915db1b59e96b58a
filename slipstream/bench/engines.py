"""Engines of the methods under test, and of random weights."""

import asyncio
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from slipstream.bench.cost import CostPlan, launches, measure_cost
from slipstream.bench.harness import Advance
from slipstream.bench.load import LoadPlan, measure_rounds
from slipstream.bench.methods import Method
from slipstream.client import AsyncClient, Client
from slipstream.client.embedded import AsyncEmbedded, Embedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import InvalidRequest
from slipstream.drafting.build import Drafter, DraftModel
from slipstream.engine.thread import EngineThread
from slipstream.models.cuda.graphs import num_captures
from slipstream.models.cuda.layers import scale_linears
from slipstream.models.dtypes import FP8, choose_dtype
from slipstream.models.format.digests import weights_digests
from slipstream.models.format.tokenizer import NumberedTokenizer, fitted
from slipstream.models.glide.glide_files import save_glide
from slipstream.models.glide.glide_init import GlideShape, config_for_target, init_from_target
from slipstream.models.glide.load import glide_folder
from slipstream.models.loaded import made_of, parse_device
from slipstream.models.native.checkpoint import CONFIG
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
NUM_REPEATS = 2


class MethodEngines:
    """The methods of one run over one target, which they share; drafts where they can be."""

    def __init__(
        self, target: str, draft: str, options: EngineOptions, profile: Path | None = None
    ) -> None:
        """`draft` is that of glide and best: glide, a directory of weights or vanilla:MODEL;
        `profile` is a file that takes the place of its own profile."""
        self._target = target
        self._draft = draft
        self._options = options
        self._profile = profile
        self._drafters: dict[str, Drafter] = {}
        self._tuned: dict[str, Drafter] = {}
        self.draft_digests: dict[str, str] = {}
        """SHA-256 of the GliDe weights when they were loaded, by file; empty without any."""

    def load(self, method: Method) -> None:
        """Load the models of a method; raises `ModelError` or `InvalidRequest` where it can't."""
        try:
            with self.client(method).session() as session:
                # Everything about a request is checked when it is made; this one never runs.
                session.stream((0,), max_tokens=1, speculation=method.options)
        except InvalidRequest as error:
            raise type(error)(f"method {method.name!r}: {error}") from None

    @cached_property
    def engine(self) -> Engine:
        """The target, loaded when it is first needed."""
        return Engine.load(self._target, self._options, draft=self._draft)

    def draft_model(self) -> DraftModel:
        """Return the draft for the target, without a profile."""
        return self.engine.draft_model(self._draft)

    def tune(self, method: str, drafter: Drafter) -> None:
        """Give the method of this name a drafter of its own."""
        self._tuned[method] = drafter

    def client(self, method: Method) -> Client:
        return Client.of(Embedded(self.engine, self._drafter(method)))

    def _drafter(self, method: Method) -> Drafter:
        if method.name in self._tuned:
            return self._tuned[method.name]
        # As engines name drafts: a target alone has none.
        names = {"plain": "none", "ngram": "ngram", "vanilla": f"vanilla:{method.model}"}
        name = names.get(method.base, self._draft)
        if name not in self._drafters:
            profile = self._profile if name == self._draft else None
            drafter = self.engine.drafter(name, profile=profile)
            if drafter.kind == "glide":
                self.draft_digests = weights_digests(
                    glide_folder(self._draft, self.engine.model_id)
                )
            self._drafters[name] = drafter
        return self._drafters[name]


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
    text = TextTokenizer.from_parts(backend.to_str().encode(), _TEMPLATE, {})
    return NumberedTokenizer(text, text.vocab_hash, len(text), vocab[_END])

"""Costs of forwards and rounds of random weights, in the shape of a published model, by torch."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, supported_activities
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from slipstream.bench.cost import CostPlan, measure_cost
from slipstream.bench.figures import Figures, drafting_figures, fixed, number, table_of
from slipstream.bench.harness import Advance
from slipstream.bench.load import Answer, LoadPlan, Send, measure_load, method_engine, rows_of
from slipstream.bench.methods import parse_method
from slipstream.bench.questions import Question, random_questions
from slipstream.client import AsyncClient
from slipstream.client.embedded import AsyncEmbedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import InvalidRequest
from slipstream.core.types import SamplingParams
from slipstream.drafting.build import DraftModel
from slipstream.engine.thread import EngineThread
from slipstream.models.cuda.graphs import num_captures
from slipstream.models.cuda.layers import scale_linears
from slipstream.models.dtypes import CPU, FP8, choose_dtype
from slipstream.models.format.tokenizer import NumberedTokenizer, fitted
from slipstream.models.glide.glide_files import save_glide
from slipstream.models.glide.glide_init import GlideShape, config_for_target, init_from_target
from slipstream.models.loaded import find_source, made_of, parse_device
from slipstream.models.memory import wait_for
from slipstream.models.native.checkpoint import CONFIG
from slipstream.models.native.library import has_kernels
from slipstream.models.threads import set_num_threads
from slipstream.models.torch.arrays import start_torch, torch_dtype
from slipstream.models.torch.loading import require_causal
from slipstream.text.tokenizer import TextTokenizer

ROUND_METHODS = "plain", "glide", "glide+cape", "auto"
"""Methods whose rounds are taken apart: none, a chain, CaPE, and what a request gets by default."""
_OF_DEVICE = ("kernels", "copies", "waits", "device_ms")
NUM_REPEATS = 2
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
    ready = num_captures()
    sent = LoadPlan(plan.sessions, 1, NUM_REPEATS, plan.rounds + 1)

    async def measured() -> dict[str, Any]:
        async with AsyncClient.of(engines) as client:
            return await measure_rounds(sent, client, plan.context, options.device, advance=advance)

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


async def measure_rounds(
    plan: LoadPlan, client: AsyncClient, num_chars: int, device: str, *, advance: Advance
) -> dict[str, Any]:
    """Return `measure_load` of random texts, and with each method what a round takes: see
    `_round`."""
    questions = random_questions(max(plan.users), num_chars)
    methods = map(parse_method, ROUND_METHODS)
    engines = [method_engine(method, client, SamplingParams()) for method in methods]
    figures = await measure_load(plan, questions, engines, engines[0].send, advance=advance)
    for level in figures["levels"]:
        asked = questions[: level["users"]]
        for engine in engines:
            of = await _round(engine.send, asked, plan.max_new_tokens, device)
            level["engines"][engine.name] |= of
    return figures


async def _round(
    send: Send, questions: Sequence[Question], most: int, device: str
) -> dict[str, float | None]:
    """Return the milliseconds of a round of as many users as questions, what `launches` collects
    in it, and the rest of the time, in which the device waits for the host. What a first token
    takes, and the prompt before it, is left out."""

    async def answers(count: int) -> list[Answer]:
        return await asyncio.gather(*(send(question, count) for question in questions))

    found = await answers(most)
    rounds = max(drafting_figures([of.speculation])["rounds"] for of in found if of.speculation)
    round_ms = 1000 * max(of.decode_s for of in found) / rounds
    with launches(device) as first:
        await answers(1)
    with launches(device) as every:
        await answers(most)
    own = {name: (every[name] - first[name]) / rounds for name in every}
    host_ms = round_ms - own["device_ms"] if own else None
    return {"round_ms": round_ms, **dict.fromkeys(_OF_DEVICE), **own, "host_ms": host_ms}


def rounds_table(figures: Figures, floors_ms: Mapping[str, float]) -> Table:
    """Return a row for each number of users and method; `floors_ms` are by the former."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        f"over {figures['base']}": lambda of: fixed((of["ratio"] or {}).get("median"), 2, "x"),
        "ms a round": number("round_ms", 2),
        "of floor": lambda of: fixed(of["round_ms"] / of["floor_ms"], 2, "x"),
        "kernels": number("kernels", 0),
        "to host": number("copies", 1),
        "waits": number("waits", 1),
        "device ms": number("device_ms", 2),
        "host ms": number("host_ms", 2),
        "identical": lambda of: f"{of['identical']}/{of['outputs']}",
    }
    rows = (((u, n), {**of, "floor_ms": floors_ms[u]}) for u, n, of in rows_of(figures))
    return table_of(("sessions", "method"), columns, rows)


@contextmanager
def launches(device: str) -> Iterator[dict[str, float]]:
    """Yield what there is, after the context, of kernels and copies that a GPU has run in it: their
    number and milliseconds, the copies to the host, and how often this waited; none on a CPU."""
    found: dict[str, float] = {}
    if device == CPU or ProfilerActivity.CUDA not in supported_activities():
        yield found
        return
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        yield found
        wait_for(device)
    own = [event for event in trace.events() if event.device_type == DeviceType.CUDA]
    found["kernels"], found["copies"] = len(own), sum("DtoH" in event.name for event in own)
    found["waits"] = sum("Synchronize" in event.name for event in trace.events())
    found["device_ms"] = sum(event.time_range.elapsed_us() for event in own) / 1000

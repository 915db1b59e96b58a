"""EngineSettings of each configuration's engine, and the target's prompts and weights for them.

llama.cpp reads the GGUF file as published, or its numbers as bfloat16. Both hold the weights that
the target was made of: a file with others is refused.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.constants import Keys
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors import safe_open

from slipstream.bench.harness import require_at_least
from slipstream.bench.peers.engine import EngineSettings
from slipstream.bench.peers.plan import Configuration, PeerMode, PromptIds, System
from slipstream.bench.questions import Question, in_turn
from slipstream.config import load_settings
from slipstream.core.errors import ModelNotFound, SlipstreamError, WeightsError
from slipstream.local.stack import StackPlan
from slipstream.models.loading import find_sources, load_tokenizer, require_causal
from slipstream.models.store.digests import file_digest
from slipstream.models.store.folder import WEIGHTS, all_or_nothing, exclusive, gguf_in
from slipstream.models.store.resolve import resolve, short_name
from slipstream.models.store.wheel import CATALOG
from slipstream.models.tokenizer import text_tokenizer
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer

LOOKUP_TOKENS = 10
LLAMA_LOOKUP_TOKENS = 2
"""Number that llama-cpp-python advises for machines without a GPU; its default is 10."""
_NORM = ("output_norm.weight", "model.norm.weight")
"""A small tensor of the whole model, by its names in GGUF and in safetensors."""


class NotAvailable(SlipstreamError):
    """Configuration that can't run here; the message has the reason."""


@dataclass(frozen=True, slots=True)
class PeersOptions:
    """Options of all engines, and of single ones."""

    target: str
    draft: str
    dtype: str
    threads: int
    device: str
    num_positions: int
    """Tokens that the longest request may hold."""
    stack: StackPlan
    profile: Path | None = None
    assistant: str | None = None
    gguf: Path | None = None
    token: str | None = None
    lookup_tokens: int = LOOKUP_TOKENS
    llama_lookup_tokens: int = LLAMA_LOOKUP_TOKENS
    llama_repack: bool = True

    def __post_init__(self) -> None:
        require_at_least(self, threads=1, lookup_tokens=1, llama_lookup_tokens=1)


def engine_settings(
    config: Configuration, options: PeersOptions, *, is_concurrent: bool
) -> EngineSettings:
    """Return what the engine of a configuration loads. Raises `NotAvailable` where it can't run.

    Configurations of ours with equal settings share an engine; others have their own.
    """
    shared: dict[str, Any] = {
        "system": config.system.value,
        "target": options.target,
        "dtype": options.dtype,
        "threads": options.threads,
        "device": options.device,
    }
    if config.system is System.TRANSFORMERS:
        return shared | _transformers(config, options)
    if config.system is System.LLAMA_CPP:
        return shared | _llama(config, options)
    if config.system is System.OPENAI:
        return shared | {"url": config.url, "token": options.token}
    return shared | _ours(config, options, is_concurrent=is_concurrent)


def _transformers(config: Configuration, options: PeersOptions) -> dict[str, Any]:
    if config.mode is PeerMode.ASSISTANT and options.assistant is None:
        raise NotAvailable("there is no assistant model; --assistant names one")
    return {
        "mode": config.mode.value,
        "assistant": options.assistant,
        "lookup_tokens": options.lookup_tokens,
    }


def _llama(config: Configuration, options: PeersOptions) -> dict[str, Any]:
    if find_spec("llama_cpp") is None:
        raise NotAvailable("llama-cpp-python is not installed: pip install 'slipstream[peers]'")
    if options.device != "cpu":
        raise NotAvailable(f"llama.cpp is run on the CPU here, but the device is {options.device}")
    return {
        "mode": config.mode.value,
        "gguf": str(_gguf(options.target, options.gguf, is_full=config.is_full)),
        "num_positions": options.num_positions,
        "llama_lookup_tokens": options.llama_lookup_tokens,
        "llama_repack": options.llama_repack,
    }


@lru_cache
def _gguf(target: str, gguf: Path | None, *, is_full: bool) -> Path:
    try:
        found = published(target, gguf)
        return in_bfloat16(found) if is_full else found
    except SlipstreamError as error:
        raise NotAvailable(str(error)) from None


def _ours(config: Configuration, options: PeersOptions, *, is_concurrent: bool) -> dict[str, Any]:
    assert config.method is not None
    if config.system is System.DISTRIBUTED:
        return {"stack": asdict(options.stack)}
    return {
        "system": "embedded-batched" if is_concurrent else config.system.value,
        "draft": options.draft,
        "profile": None if options.profile is None else str(options.profile),
        "numerics": config.method.numerics,
    }


_BF16 = GGMLQuantizationType.BF16


def target_tokenizer(target: str) -> TextTokenizer:
    """Return the tokenizer of a target; loads no weights."""
    return text_tokenizer(load_tokenizer(*find_sources(resolve(target))))


def encoded(questions: Sequence[Question], tokenizer: TextTokenizer) -> tuple[PromptIds, ...]:
    """Return the first turn of each, in an order in which categories alternate."""
    return tuple(
        PromptIds(at.question_id, at.category, encode_prompt(tokenizer, at.turns[0]))
        for at in in_turn(questions)
    )


def context_length(target: str) -> int | None:
    """Return the tokens that the target was made for; None where it is not configured."""
    folder, gguf = find_sources(resolve(target))
    if gguf is not None:
        return None
    config = require_causal(folder).get_text_config()
    length: int | None = getattr(config, "max_position_embeddings", None)
    return length


def published(target: str, gguf: Path | None = None) -> Path:
    """Return the GGUF file that a target was made of: `gguf`, the target itself, or fetched once.

    Raises `ModelNotFound` where there is none, `WeightsError` for one with other weights.
    """
    path = resolve(target)
    own = path if path.suffix == ".gguf" else gguf_in(path)
    found = gguf or own or _fetched(target)
    if not found.is_file():
        raise ModelNotFound(f"there is no file {found}")
    if own is None:
        _require_same_weights(found, path)
    return found


def in_bfloat16(gguf: Path) -> Path:
    """Return the same model with all matrices as bfloat16, written to our cache once."""
    cache = load_settings().cache_dir
    name = f"{gguf.stem}-{file_digest(gguf)[:12]}-bf16"
    written = cache / name / f"{gguf.stem}.BF16.gguf"
    with exclusive(cache, name):
        if not written.is_file():
            with all_or_nothing(cache, name) as folder:
                write_bfloat16(gguf, folder / written.name)
    return written


def write_bfloat16(gguf: Path, into: Path) -> None:
    """Copy a GGUF file, its quantised tensors as the bfloat16 nearest to what they stand for."""
    reader = GGUFReader(gguf)
    architecture = reader.fields[Keys.General.ARCHITECTURE].contents()
    writer = GGUFWriter(into, architecture)
    for field in reader.fields.values():
        if field.name in (Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE):
            continue
        if not field.name.startswith("GGUF."):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    writer.add_file_type(LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        _add(writer, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, tensor: Any) -> None:
    if tensor.tensor_type in (GGMLQuantizationType.F32, _BF16):
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        return
    values = dequantize(tensor.data, tensor.tensor_type)
    writer.add_tensor(tensor.name, quantize(values, _BF16), raw_dtype=_BF16)


def _fetched(target: str) -> Path:
    """Return the file that a known model comes in; kept in our cache."""
    name = short_name(target)
    for known in CATALOG.values():
        if known.quantised_of == name:
            file = gguf_in(resolve(known.alias))
            assert file is not None, "it is kept as it comes"
            return file
    raise ModelNotFound(f"no GGUF file is known for {target}; --gguf names one")


def _require_same_weights(gguf: Path, folder: Path) -> None:
    """Compare the last norm: no two trained models have the same."""
    theirs = next((t for t in GGUFReader(gguf).tensors if t.name == _NORM[0]), None)
    weights = folder / WEIGHTS
    ours = _tensor(weights, _NORM[1]) if weights.is_file() else None
    if theirs is None or ours is None:
        raise WeightsError(f"{gguf.name} can't be compared with the weights in {folder.name}")
    values = np.asarray(theirs.data, dtype=np.float32).ravel()
    # One step of bfloat16: what was published may hold more digits than the target keeps.
    if values.shape != ours.shape or not np.allclose(values, ours, rtol=2**-7, atol=1e-6):
        raise WeightsError(f"{gguf.name} holds other weights than {folder.name}")


def _tensor(weights: Path, name: str) -> NDArray[np.float32] | None:
    with safe_open(weights, framework="pt") as file:
        values = file.get_tensor(name) if name in set(file.keys()) else None
    return None if values is None else values.float().numpy()

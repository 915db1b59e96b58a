"""A model's files by its name: weights for native code, tokenizer, and what identifies them.

Weights come from safetensors or GGUF, never from pickles, and no code of a model directory runs.
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest, ModelMismatch, WeightsError
from slipstream.core.request.request import MODEL_DEFAULTS
from slipstream.core.types import SamplingParams
from slipstream.models.dtypes import AUTO, BFLOAT16, CPU, FLOAT32, Q8, choose_dtype
from slipstream.models.format.architecture import eos_ids
from slipstream.models.format.folder import brief, gguf_in, reading, shown
from slipstream.models.format.gguf_file import GgufFile
from slipstream.models.format.resolve import short_name
from slipstream.models.format.tokenizer import NumberedTokenizer
from slipstream.models.machine import require_torch
from slipstream.models.native.checkpoint import Checkpoint
from slipstream.models.native.gguf_weights import GgufSource
from slipstream.models.native.library import NotNative, kernels
from slipstream.models.native.source import WeightSource
from slipstream.text.token_bytes import same_numbering
from slipstream.text.tokenizer import TextTokenizer

_LOG = logging.getLogger("slipstream.models")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_GENERATION = "generation_config.json"
_SAMPLING = "general.sampling."
_SAMPLING_NAMES = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
_HARMLESS = re.compile(
    r"_.*|.*_version|(bos|eos|pad|decoder_start)_token_id|do_sample|max_.*|.*cache.*|return_.*"
    r"|output_.*|(num_)?assistant_.*|num_return_sequences|(length|diversity)_penalty|early_stopping"
    r"|.*compile.*|mirostat_.*|xtc_threshold|renormalize_logits|remove_invalid_values|chat_format|trust_remote_code"
)
"""Fields of a generation_config.json that change no token of an answer, or only with beams."""
_ONE = re.compile(r"num_beams|num_beam_groups|typical_p|.*_penalty|guidance_scale")
"""Fields that change nothing at 1."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model, its tokenizer and what identifies them.

    `model` is a transformers model or a source of weights; `num_token_ids` counts ids up to the
    highest that the tokenizer gives.
    """

    model: Any
    tokenizer: TextTokenizer
    model_id: str
    tokenizer_hash: str
    """SHA-256 of the numbering of tokens: equal where ids mean the same."""
    path: Path
    num_token_ids: int
    stop_token_ids: frozenset[int]
    """End-of-sequence ids by the generation config, the config and the tokenizer."""


def made_of(
    name: str, path: Path, model: Any, tokenizer: NumberedTokenizer, ends: frozenset[int]
) -> LoadedModel:
    """Return a model of that name with its tokenizer and its end-of-sequence ids."""
    ends |= eos_ids(generation_config(path).get("eos_token_id")) | eos_ids(tokenizer.eos_token_id)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer.text,
        model_id=short_name(name),
        tokenizer_hash=tokenizer.vocab_hash,
        path=path,
        num_token_ids=tokenizer.num_ids,
        stop_token_ids=frozenset(ends.intersection(range(tokenizer.num_ids))),
    )


def sampling_defaults(path: Path) -> dict[str, float]:
    """Return the sampling defaults of a model's generation_config.json, or else of its GGUF file,
    by the names of `MODEL_DEFAULTS`; a warning names what else there changes answers.

    Raises `WeightsError` for a file that can't be read or a value out of range.
    """
    config = generation_config(path)
    place = f"{_GENERATION if config else _SAMPLING.rstrip('.')} of {path}"
    given = {
        name: it
        for name, it in (config or _gguf_sampling(path)).items()
        if it not in (None, [], {}) and (name, it) != ("top_k", -1)
    }
    found = {name: given[name] for name in MODEL_DEFAULTS if name in given}
    if (is_sampled := given.get("do_sample", True)) not in (True, False):
        raise WeightsError(f"{place} has do_sample of {is_sampled!r:.60}")
    if not is_sampled:
        kept = {name: it for name, it in found.items() if name == "repetition_penalty"}
        found = {"temperature": 0.0, **kept}
    for name, value in found.items():
        is_number = type(value) is int or (type(value) is float and name != "top_k")
        if not is_number or not -1 < value < 2**31:
            raise WeightsError(f"{place} has {name} of {value!r:.60}")
        try:
            SamplingParams(**{name: value})
        except InvalidRequest as error:
            raise WeightsError(f"{place} can't be used: {error}") from None
    others = given.keys() - {*MODEL_DEFAULTS}
    neutral = {name for name in others if given[name] in ((0, 1) if _ONE.fullmatch(name) else (0,))}
    if left := sorted(name for name in others - neutral if not _HARMLESS.fullmatch(name)):
        _LOG.warning("%s has what is not applied: %s", place, shown(left))
    return found


def _gguf_sampling(path: Path) -> Mapping[str, Any]:
    """Return the fields of a GGUF file for sampling, by the names of generation_config.json."""
    gguf = find_sources(path)[1]
    fields = GgufFile(gguf).fields if gguf else {}
    own = {
        name.removeprefix(_SAMPLING): fields[name] for name in fields if name.startswith(_SAMPLING)
    }
    return {
        _SAMPLING_NAMES.get(name, name): float(f"{it:.7g}") if isinstance(it, float) else it
        for name, it in own.items()
    }


def generation_config(path: Path) -> Mapping[str, Any]:
    """Return the generation_config.json of a model, {} where there is none. Raises
    `WeightsError`."""
    file = (path.parent if path.is_file() else path) / _GENERATION
    if not file.is_file():
        return {}
    with reading(file):
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise WeightsError(f"{file} is no object")
        return found


def find_sources(path: Path) -> tuple[Path, Path | None]:
    """The directory to load from, and the GGUF file in it when that is what holds the weights."""
    gguf = path if path.is_file() else gguf_in(path)
    return (gguf.parent, gguf) if gguf else (path, None)


def find_source(
    folder: Path,
    gguf: Path | None,
    dtype: str,
    device: str,
    *,
    num_ranks: int = 1,
    has_layers: bool = True,
) -> WeightSource:
    """The weights of a model for native code; `has_layers` as in `Checkpoint`.

    Raises `NotNative` where native code can't compute it, `WeightsError` for files that are broken
    or not of the model's shape.
    """
    if parse_device(device) != CPU or num_ranks > 1:
        raise NotNative(f"on {num_ranks} x {device} there are no native kernels")
    kernels()
    if gguf and dtype == Q8:
        raise InvalidRequest(
            f"the dtype is q8, but {gguf.name} is a GGUF file, whose blocks are computed as they"
            " are: use auto"
        )
    chosen = choose_dtype(dtype, CPU, native=True)
    if chosen not in (FLOAT32, BFLOAT16):
        raise NotNative(f"{dtype} has no native kernels")
    with reading(gguf or folder):
        if gguf:
            return GgufSource(gguf, chosen, is_dense=dtype != AUTO)
        return Checkpoint(folder, chosen, is_coded=dtype == Q8, has_layers=has_layers)


def require_same_numbering(model_id: str, text: TextTokenizer, draft: LoadedModel) -> None:
    """Raise `ModelMismatch` unless ids that a target, with the tokenizer `text`, and a draft have
    are the same tokens; it names the first that differs. See `same_numbering`."""
    ours, theirs = draft.tokenizer.table, text.table
    if same_numbering(ours.numbering, theirs.numbering):
        return
    num_plain = ours.num_plain, theirs.num_plain
    for token in range(max(len(ours), len(theirs))):
        one, other = ours.token(token), theirs.token(token)
        if one != other and (token < max(num_plain) or (one and other)):
            names = [f"{name!r:.40}" if name else "none" for name in (one, other)]
            raise ModelMismatch(
                f"token {token} is {names[0]} of the draft {draft.model_id}, but {names[1]} of the"
                f" target {model_id}"
            )
    raise ModelMismatch(
        f"the draft {draft.model_id} has {num_plain[0]} tokens before those that were added, but"
        f" the target {model_id} {num_plain[1]}"
    )


def device_name(device: str) -> str:
    """Return the name of a device's GPU; cpu for a CPU."""
    if device == CPU:
        return device
    import torch

    return torch.cuda.get_device_name(device)


def parse_device(name: str) -> str:
    """Return the device of a name. Raises `InvalidRequest` for one that is not here, `ModelError`
    where torch is needed and not installed."""
    if not _DEVICE.fullmatch(name):
        raise InvalidRequest(f"the device is {name!r}, but must be cpu, cuda or cuda:N")
    if name == CPU:
        return name
    require_torch(f"the device {name!r}")
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest(f"the device {name!r} can't be used ({brief(error)})") from None
    return name

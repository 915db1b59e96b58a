"""Model directories: what makes one complete, how one is made all at once, and the hub's cache."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath

from filelock import FileLock
from safetensors import SafetensorError

from slipstream.core.errors import ModelError, ModelNotFound, SlipstreamError, WeightsError
from slipstream.models.format.gguf_file import gguf_parts
from slipstream.models.native.library import NotNative

WEIGHTS = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
_NO_CONFIG, _ADAPTER = "no config.json", "adapter_config.json"
_POINTER = b"version https://git-lfs"
PICKLED = (
    'pickled weights are never loaded; convert them with `python -c "import torch,'
    " safetensors.torch as s; s.save_file(torch.load('pytorch_model.bin', 'cpu',"
    " weights_only=True), 'model.safetensors')\"`"
)
"""Advice about pickled weights."""
_PARTIAL = ".partial-"
_READ = {".safetensors", ".gguf", ".json"}
PROBE_TIMEOUT_S = 5.0
_HUB_ID = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}(@\w[\w./-]{0,95})?", re.ASCII)
_IGNORED = ["*/*", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf"]


def missing_part(folder: Path, *, has_tokenizer: bool = True) -> str | None:
    """Return what a directory lacks to be a loadable model, or None when it is complete. Heads have
    no tokenizer."""
    if (lack := _unready(folder)) or gguf_in(folder) is not None:
        return lack  # a GGUF file has all of it
    if not (folder / "config.json").is_file():
        files = [file.name for file in _ggufs(folder)]
        return f"several GGUF files, of which one must be named: {files}" if files else _NO_CONFIG
    if lack := _missing_weights(folder):
        return lack
    if has_tokenizer and not (folder / TOKENIZER).is_file():
        return f"no {TOKENIZER} (save_pretrained of transformers' AutoTokenizer writes one)"
    return None


def _unready(folder: Path) -> str | None:
    """Return what has to be done before the files of a directory are those of a model."""
    for path in sorted(folder.glob("*.*")):
        if path.suffix in _READ and path.is_symlink() and not path.exists():
            return f"{path.name} is a link to a file that is not there"
        if path.is_file() and path.stat().st_size < 1024 and _POINTER in path.read_bytes():
            return f"{path.name} is a pointer of Git LFS alone; `git lfs pull` fetches the file"
    has_adapter = (folder / _ADAPTER).is_file()
    return f"its adapter ({_ADAPTER}) has to be merged into it first" if has_adapter else None


def gguf_in(folder: Path) -> Path | None:
    """Return the GGUF file, or the first part of a split one, of a directory that holds exactly
    one model and no safetensors."""
    files = _ggufs(folder)
    return files[0] if len(files) == 1 and not any(folder.glob("*.safetensors")) else None


def _ggufs(folder: Path) -> list[Path]:
    """Return the GGUF files of models, of split ones the first part; readers of images and figures
    of importance are none."""
    files = {gguf_parts(file)[0] for file in folder.glob("*.gguf")}
    return sorted(file for file in files if not re.search("mmproj|imatrix", file.name.lower()))


def _missing_weights(folder: Path) -> str | None:
    if (folder / WEIGHTS).is_file():
        return None
    index = folder / SHARD_INDEX
    if not index.is_file() and (others := sorted(folder.glob("*.safetensors"))):
        return f"neither {WEIGHTS} nor {SHARD_INDEX}, but {others[0].name}"
    if not index.is_file():
        return f"no {WEIGHTS} (pickled weights are never loaded)"
    with reading(index):
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        paths = map(PurePath, sorted(shards))
        if outside := [str(path) for path in paths if path.is_absolute() or ".." in path.parts]:
            return f"{SHARD_INDEX} names {outside[0]!r:.200}, which is not in the directory"
        lacking = sorted(name for name in shards if not (folder / name).is_file())
    return f"no {shown(lacking[:1])}" if lacking else None


@contextmanager
def exclusive(cache_dir: Path, name: str) -> Iterator[None]:
    """Hold the right to create the model `name`; a second process waits here.

    Raises `ModelError` when the cache can't be written.
    """
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache_dir / f".lock-{name}")
        lock.acquire()
    except OSError as error:
        raise unwritable(cache_dir, error) from None
    try:
        # The process that left these has died: the lock was free.
        for leftover in cache_dir.glob(f"{_PARTIAL}{name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        lock.release()


@contextmanager
def all_or_nothing(cache_dir: Path, name: str) -> Iterator[Path]:
    """A scratch directory that becomes `cache_dir/name` when the block succeeds, else vanishes.

    Raises `ModelError` when the cache can't be written or is full.
    """
    scratch: Path | None = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{name}-", dir=cache_dir))
        yield scratch
        scratch.chmod(0o755)
        for path in scratch.iterdir():
            path.chmod(0o644)
        scratch.rename(cache_dir / name)
    except (OSError, SafetensorError) as error:
        raise unwritable(cache_dir, error) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def unwritable(cache_dir: Path, error: Exception) -> ModelError:
    """The sentence for a cache directory that can't be written."""
    reason = getattr(error, "strerror", None) or str(error)
    return ModelError(
        f"the model cache {cache_dir} can't be written ({reason}); "
        "SLIPSTREAM_CACHE names another directory"
    )


def cached_snapshot(name: str, *, has_tokenizer: bool = True) -> Path | None:
    """The hub cache's newest complete copy of a repository, without asking the network.

    Of OWNER/NAME@REVISION it is the copy of that commit, branch or tag.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    hub_id, revision = split_revision(name)
    try:
        path = Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    # A download that was cut short leaves a snapshot directory too.
    return path if missing_part(path, has_tokenizer=has_tokenizer) is None else None


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form of a hub repository, OWNER/NAME or OWNER/NAME@REVISION."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name


def split_revision(name: str) -> tuple[str, str | None]:
    """The repository, and the commit, branch or tag; None where the name pins none."""
    hub_id, _, revision = name.partition("@")
    return hub_id, revision or None


def fetch_snapshot(name: str, *, has_tokenizer: bool = True) -> Path:
    """Download a repository's safetensors model into the hub's cache.

    One request decides whether the hub is there, so that a machine without network fails in
    seconds. Raises `ModelNotFound` when the hub or the repository can't be reached and
    `WeightsError` when the repository has no safetensors weights.
    """
    from huggingface_hub import HfApi, snapshot_download

    hub_id, revision = split_revision(name)
    try:
        info = HfApi().model_info(hub_id, revision=revision, timeout=PROBE_TIMEOUT_S)
        names = [file.rfilename for file in info.siblings or []]
        if not any(name.endswith(".safetensors") for name in names):
            raise WeightsError(f"{name} has no safetensors weights on the hub: {PICKLED}")
        path = snapshot_download(hub_id, revision=info.sha, ignore_patterns=_IGNORED)
    except WeightsError:
        raise
    except Exception as error:  # its HTTP library and its errors differ between versions
        raise ModelNotFound(f"{name} can't be had from the hub ({brief(error)})") from None
    if lack := missing_part(Path(path), has_tokenizer=has_tokenizer):
        raise WeightsError(f"{name} on the hub is not a loadable model: {lack}")
    return Path(path)


@contextmanager
def reading(subject: object) -> Iterator[None]:
    """Make what is raised where files of a model are read one `WeightsError`: parsers raise
    anything over files from anywhere. Errors that are sentences already stay as they are."""
    try:
        yield
    except (SlipstreamError, NotNative):
        raise
    except BaseException as error:
        # A panic of a library in Rust is no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise WeightsError(f"{subject} can't be loaded ({brief(error)})") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep bars and warnings of transformers back; errors still raise, and all comes back
    afterwards as it was."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def shown(names: Sequence[str]) -> str:
    """Return names from files as messages show them."""
    text = ", ".join(names)
    return text if text.isprintable() and len(text) < 200 else f"{text!r:.200}"


def brief(error: BaseException) -> str:
    """Return the first line of an error's message, and the next where that is a heading, in at most
    300 printable characters, or its type where there is none, or a key alone."""
    lines = str(error).strip().splitlines()
    if not lines or isinstance(error, KeyError):
        return " ".join([type(error).__name__, *lines[:1]])[:300]
    line = " ".join(map(str.strip, lines[: 1 + lines[0].endswith(":")]))
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line[:300].rstrip(".")

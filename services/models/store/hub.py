"""Models from the hub and from its local cache. Knows nothing of aliases and of our own cache."""

import re
from pathlib import Path

from slipstream.core.errors import ModelNotFound, WeightsError
from slipstream.models.store.folder import missing_part

PROBE_TIMEOUT_S = 5.0
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?")
_IGNORED = ["*/*", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf"]


def cached_snapshot(name: str) -> Path | None:
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
    return path if missing_part(path) is None else None


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a hub repository, OWNER/NAME or OWNER/NAME@REVISION."""
    return _HUB_ID.fullmatch(name) is not None


def split_revision(name: str) -> tuple[str, str | None]:
    """The repository, and the commit, branch or tag; None where the name pins none."""
    hub_id, _, revision = name.partition("@")
    return hub_id, revision or None


def fetch_snapshot(name: str) -> Path:
    """Download a repository's safetensors model into the hub's cache.

    One request decides whether the hub is there, so that a machine without network knows in
    seconds. Raises `ModelNotFound` when the hub or the repository can't be reached and
    `WeightsError` when the repository has no safetensors weights.
    """
    from huggingface_hub import HfApi, snapshot_download

    hub_id, revision = split_revision(name)
    try:
        info = HfApi().model_info(hub_id, revision=revision, timeout=PROBE_TIMEOUT_S)
        names = [file.rfilename for file in info.siblings or []]
        if not any(name.endswith(".safetensors") for name in names):
            raise WeightsError(f"{name} has no safetensors weights on the hub")
        path = snapshot_download(hub_id, revision=info.sha, ignore_patterns=_IGNORED)
    except WeightsError:
        raise
    except Exception as error:  # its HTTP library and its errors differ between versions
        raise ModelNotFound(f"{name} can't be had from the hub ({brief(error)})") from None
    if lack := missing_part(Path(path)):
        raise WeightsError(f"{name} on the hub is not a loadable model: {lack}")
    return Path(path)


def brief(error: BaseException) -> str:
    """The first line of an error's message, or its type when it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__

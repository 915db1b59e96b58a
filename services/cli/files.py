"""Files that commands write: each is complete or absent at any time."""

import os
import tempfile
from pathlib import Path

from slipstream.core.errors import InvalidRequest


def write_whole(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace a file, which its owner alone can read until it is complete.

    Without `mode`, the owner and the mode of a file that exists stay, and a new one has 0600.
    Raises `InvalidRequest` where that fails.
    """
    try:
        _replace(path.resolve(), data, mode)  # a link stays one
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written ({error.strerror})") from None


def _replace(path: Path, data: bytes, mode: int | None) -> None:
    before = path.stat() if mode is None and path.exists() else None
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if before is not None:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                mode = before.st_mode & 0o777
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise

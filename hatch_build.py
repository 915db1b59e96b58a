"""Compiles slipstream/models/native/src when Slipstream is built or installed.

Without a C++ compiler, or where one fails, that is skipped with one line, and torch computes.
`python hatch_build.py [FLAG ...]` compiles for a checkout that is installed already.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("slipstream") / "models" / "native"
LIBRARY = NATIVE / "lib" / "libslipstream_native.so"  # in a package it would be taken for a module
COMPILERS = ("c++", "g++", "clang++")
# Nothing here may change what an operation gives: the bits are the same on all processors.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
INSTRUCTION_SETS = {
    "avx2.cpp": ("x86_64", *_AVX2),
    "avx2_vnni.cpp": ("x86_64", *_AVX2),
    "avx512.cpp": ("x86_64", *_AVX512),
    "avx512_vnni.cpp": ("x86_64", *_AVX512, "-mavx512vnni"),
    "avx512_bf16.cpp": ("x86_64", *_AVX512, "-mavx512vnni"),
    "neon_dot.cpp": ("arm64", "-march=armv8.2-a+dotprod"),
}
"""What is for one architecture alone, and how it is compiled."""
NEWER = {"avx2_vnni.cpp": "-mavxvnni", "avx512_bf16.cpp": "-mavx512bf16"}
"""Flags that older compilers or assemblers lack: a file that is compiled without has no kernels."""

FOR_THIS_MACHINE = "SLIPSTREAM_KERNELS"
"""Variable: set to `host`, files for what this processor lacks are compiled without kernels."""


class NotCompiled(Exception):
    """Why there will be no native kernels, in one line."""


class NativeKernels(BuildHookInterface[Any]):
    """Adds the kernels to wheels, editable ones included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if self.target_name != "wheel":
            return
        try:
            compile_into(Path(self.root))
        except NotCompiled as reason:
            (Path(self.root) / LIBRARY).unlink(missing_ok=True)  # of other sources, or machines
            self.app.display_warning(f"no native CPU kernels, torch will compute: {reason}")
            return
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"


def compile_into(root: Path, extra: tuple[str, ...] = ()) -> None:
    """Compile the library of a checkout, with `extra` flags. Raises `NotCompiled`."""
    compiler = _compiler()
    extra = (*_macos_flags(), *extra)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        made = partial(compile_source, compiler, folder=Path(folder), extra=extra)
        objects = pool.map(made, sources(root, _architecture()))
        shared = Path(folder) / LIBRARY.name
        _run(compiler, "-shared", "-pthread", *extra, *objects, "-o", str(shared))
        (root / LIBRARY).parent.mkdir(exist_ok=True)
        (root / LIBRARY).unlink(missing_ok=True)  # a process may have it open
        shutil.copy(shared, root / LIBRARY)


def sources(root: Path, architecture: str) -> list[Path]:
    """Return the files to compile for an architecture."""
    found = sorted((root / NATIVE / "src").glob("*.cpp"))
    return [at for at in found if INSTRUCTION_SETS.get(at.name, (architecture,))[0] == architecture]


def compile_source(compiler: str, source: Path, folder: Path, extra: tuple[str, ...] = ()) -> str:
    """Compile one source, and return its object in `folder`. Raises `NotCompiled`."""
    goal = str(folder / f"{source.stem}.o")
    own, newer = INSTRUCTION_SETS.get(source.name, ("",))[1:], NEWER.get(source.name)
    if os.environ.get(FOR_THIS_MACHINE) == "host" and lacks([*own, *filter(None, [newer])]):
        own, newer = (), None
    command = (compiler, *FLAGS, *own, *extra, "-c", str(source), "-o", goal)
    if newer:
        with suppress(NotCompiled):
            _run(*command, newer)
            return goal
    _run(*command)
    return goal


def lacks(flags: list[str], processors: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this processor is known to lack instructions that a compiler's flags name."""
    with suppress(OSError):
        for line in processors.read_text().splitlines():
            if line.startswith("flags"):
                known = line.replace("_", "").split()
                return any(flag.removeprefix("-m") not in known for flag in flags)
    return False


def platform_tag() -> str:
    """Return the platform that the library is compiled for, as a wheel's name has it.

    A Python for both architectures of macOS gets a library for that of this machine. The macOS
    version is `MACOSX_DEPLOYMENT_TARGET`, else the one that Python itself was built for.
    """
    system, _, rest = sysconfig.get_platform().partition("-")
    if system == "macosx":
        version, _, machine = rest.partition("-")
        version = os.environ.get("MACOSX_DEPLOYMENT_TARGET", version)
        rest = f"{version}-{platform.machine() if machine == 'universal2' else machine}"
    return f"{system}-{rest}".replace("-", "_").replace(".", "_")


def _architecture() -> str:
    tag = platform_tag()
    names = {"x86_64": "x86_64", "amd64": "x86_64", "arm64": "arm64", "aarch64": "arm64"}
    return next((name for ending, name in names.items() if tag.endswith(ending)), tag)


def _macos_flags() -> tuple[str, ...]:
    """Return what makes the compiler build for the machine and version of the wheel's tag."""
    system, *version, machine = platform_tag().split("_", 3)
    if system != "macosx":
        return ()
    return ("-arch", machine, f"-mmacosx-version-min={'.'.join(version)}")


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        if found := shutil.which(name):
            return found
    raise NotCompiled(f"{named or 'no C++ compiler'} was not found; install g++ and install again")


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        first = next((line for line in error.stderr.splitlines() if "error" in line), "it failed")
        raise NotCompiled(f"{command[0]}: {first}") from error


if __name__ == "__main__":
    try:
        compile_into(Path(__file__).parent, tuple(sys.argv[1:]))
    except NotCompiled as stopped:
        sys.exit(f"no native kernels: {stopped}")

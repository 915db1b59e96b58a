"""The native kernels give the same bits on arm64, run by an emulator, as on x86-64."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "services" / "models" / "native" / "src"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, (COMPILER, EMULATOR, "g++"))) or platform.machine() != "x86_64",
    reason=f"needs {COMPILER} and {EMULATOR} on x86-64",
)


def built(hatch_build, compiler, only, folder):
    """The program that prints digests, from the library's sources and for one architecture."""
    objects = []
    for source in [*sorted(SOURCES.glob("*.cpp")), ROOT / "tests" / "native_digest.cpp"]:
        if source.name in hatch_build.X86_64 and not only:
            continue
        goal = folder / f"{compiler}-{source.stem}.o"
        flags = [*hatch_build.FLAGS, *hatch_build.X86_64.get(source.name, ()), f"-I{SOURCES}"]
        run(compiler, *flags, "-c", source, "-o", goal)
        objects.append(goal)
    program = folder / f"{compiler}-digest"
    run(compiler, "-pthread", "-static", *objects, "-o", program)
    return program


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_arm64_gives_the_bits_of_all_kernels_of_x86_64(hatch_build, tmp_path):
    here = built(hatch_build, "g++", True, tmp_path)
    digests = {name: run(here, name) for name in ("portable", "avx2", "avx512", "avx512_vnni")}
    there = run(EMULATOR, built(hatch_build, COMPILER, False, tmp_path), "")
    assert len(there.split()) == 7, "a digest for each element type"
    assert {name: each for name, each in digests.items() if each not in (there, "none\n")} == {}

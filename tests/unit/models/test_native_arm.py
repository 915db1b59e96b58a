"""The native kernels give the same bits on arm64, run by an emulator, as on x86-64."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from support.models.instruction_sets import X86_64

ROOT = Path(__file__).parents[3]
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = next(filter(shutil.which, ("qemu-aarch64", "qemu-aarch64-static")), "qemu-aarch64")
ARM64 = ("portable", "neon_dot")

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, (COMPILER, EMULATOR, "g++"))) or platform.machine() != "x86_64",
    reason=f"needs {COMPILER} and {EMULATOR} on x86-64",
)


def built(hatch_build, compiler, architecture, folder):
    """The program that prints digests, from the library's sources and for one architecture."""
    folder = folder / architecture
    folder.mkdir()
    sources = hatch_build.sources(ROOT, architecture)
    sources.append(ROOT / "tests" / "native_digest.cpp")
    include = (f"-I{ROOT / hatch_build.NATIVE / 'src'}",)
    objects = [hatch_build.compile_source(compiler, at, folder, include) for at in sources]
    run(compiler, "-pthread", "-static", *objects, "-o", folder / "digest")
    return folder / "digest"


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_arm64_gives_the_bits_of_all_kernels_of_x86_64(hatch_build, tmp_path):
    here = built(hatch_build, "g++", "x86_64", tmp_path)
    digests = {name: run(here, name) for name in X86_64}
    there = built(hatch_build, COMPILER, "arm64", tmp_path)
    for name in ARM64:
        found = run(EMULATOR, "-cpu", "max", there, name)
        assert len(found.split()) == 17, "a digest for each element type"
        assert {name: at for name, at in digests.items() if at not in (found, "none\n")} == {}
    without = run(EMULATOR, "-cpu", "cortex-a57", there, "neon_dot")
    assert without == "none\n", "the processor has no such instructions"

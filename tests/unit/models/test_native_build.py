"""A wheel has the native kernels of its platform, without a compiler none; torch stands in. Kernels
give the same bits on arm64, run by an emulator, as on x86-64."""

import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.errors import InvalidRequest
from slipstream.models.native import library
from slipstream.models.native.library import NotNative
from support.commands import ROOT, ran_python
from support.models import tiny
from support.models.instruction_sets import X86_64


def initialized(hatch_build, root):
    """What the hook decides about a wheel of a checkout, and its warnings."""
    warnings = []
    app = SimpleNamespace(display_warning=warnings.append)
    hook = hatch_build.NativeKernels(str(root), {}, None, None, "", "wheel", app)
    data = {"artifacts": []}
    hook.initialize("standard", data)
    return data, warnings


def test_the_script_says_in_one_line_that_it_has_no_compiler():
    done = ran_python(ROOT / "hatch_build.py", CXX="no-such-compiler")
    assert done.returncode == 1
    (line,) = (done.stdout + done.stderr).splitlines()
    assert line.startswith("no native kernels: no-such-compiler was not found; install g++")


def test_a_wheel_made_without_a_compiler_is_for_every_platform(hatch_build, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    stale = tmp_path / hatch_build.LIBRARY
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another machine")
    data, (warning,) = initialized(hatch_build, tmp_path)
    assert data == {"artifacts": []}, "the defaults are a pure wheel's"
    assert warning.startswith("no native CPU kernels, torch will compute: no-such-compiler")
    assert not stale.exists()


OLD_COMPILER = """#!/bin/sh
for each; do [ "$each" = {flag} ] && exit 1; done
exec g++ "$@"
"""
PRINT_NAME = """
#include <cstdio>
#include "model.h"
const char* name = slipstream::kAvx512BFloat16.name;
int main() { std::puts(name ? name : "none"); }
"""


@pytest.mark.skipif(
    shutil.which("g++") is None or platform.machine() != "x86_64", reason="needs g++ on x86-64"
)
def test_a_compiler_too_old_for_a_set_of_kernels_leaves_them_out(hatch_build, tmp_path):
    src, compiler = ROOT / hatch_build.NATIVE / "src", tmp_path / "old"
    compiler.write_text(OLD_COMPILER.format(flag=hatch_build.NEWER["avx512_bf16.cpp"]))
    compiler.chmod(0o755)
    (tmp_path / "main.cpp").write_text(PRINT_NAME)
    objects = [
        hatch_build.compile_source(str(compiler), source, tmp_path, (f"-I{src}",))
        for source in (tmp_path / "main.cpp", src / "avx512_bf16.cpp")
    ]
    run("g++", "-pthread", *objects, "-o", tmp_path / "program")
    assert run(tmp_path / "program") == "none\n"


def test_for_this_machine_alone_what_its_processor_lacks_is_left_out(hatch_build, tmp_path):
    (tmp_path / "cpuinfo").write_text("flags\t: sse avx2 fma f16c avx512f avx512_vnni\n")
    assert not hatch_build.lacks(["-mavx2", "-mavx512vnni"], tmp_path / "cpuinfo")
    assert hatch_build.lacks(["-mavx2", "-mavxvnni"], tmp_path / "cpuinfo")
    assert not hatch_build.lacks(["-mavx2"], tmp_path / "not there")


def test_a_wheel_with_kernels_is_for_one_platform_any_python_3(hatch_build, monkeypatch, tmp_path):
    monkeypatch.setattr(hatch_build, "compile_into", lambda root: None)
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-x86_64")
    data, warnings = initialized(hatch_build, tmp_path)
    assert warnings == []
    assert data["artifacts"] == [hatch_build.LIBRARY.as_posix()]
    assert (data["pure_python"], data["tag"]) == (False, "py3-none-linux_x86_64")


MACS = [("11.0-arm64", None, "11_0_arm64"), ("10.9-x86_64", "11.0", "11_0_x86_64")]
MACS += [("10.9-universal2", "14.0", "14_0_arm64")]
PLATFORMS = [("linux-aarch64", None, "linux_aarch64", ())]
for at, oldest, tag in MACS:
    major, minor, machine = tag.split("_", 2)
    flags = ("-arch", machine, f"-mmacosx-version-min={major}.{minor}")
    PLATFORMS.append((f"macosx-{at}", oldest, f"macosx_{tag}", flags))


@pytest.mark.parametrize(("python", "target", "tag", "flags"), PLATFORMS)
def test_the_compiler_has_the_tags_platform(hatch_build, monkeypatch, python, target, tag, flags):
    monkeypatch.setattr(sysconfig, "get_platform", lambda: python)
    monkeypatch.setattr(hatch_build.platform, "machine", lambda: "arm64")
    monkeypatch.delenv("MACOSX_DEPLOYMENT_TARGET", raising=False)
    if target:
        monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", target)
    assert hatch_build.platform_tag() == tag
    assert hatch_build._macos_flags() == flags


def test_switched_off_torch_computes_and_kernels_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, "off")
    model = tiny.causal()
    assert (model.engine, model.numerics) == ("torch", "fast")
    with pytest.raises(InvalidRequest, match="numerics is invariant, but torch computes"):
        tiny.causal(numerics="invariant")
    monkeypatch.setenv(NATIVE_VARIABLE, "avx9")
    with pytest.raises(InvalidRequest, match=r"SLIPSTREAM_NATIVE is 'avx9', but this processor"):
        tiny.causal()


def test_without_a_library_torch_computes(monkeypatch):
    monkeypatch.setattr(library, "PATH", Path("nowhere.so"))
    library.library.cache_clear()
    try:
        with pytest.raises(NotNative, match="no native kernels were built"):
            library.library()
        assert tiny.causal().engine == "torch"
    finally:
        library.library.cache_clear()


COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = next(filter(shutil.which, ("qemu-aarch64", "qemu-aarch64-static")), "qemu-aarch64")
ARM64 = ("portable", "neon_dot")
needs_emulator = pytest.mark.skipif(
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


@needs_emulator
@pytest.mark.timeout(1200)  # compiles the library for two architectures
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

"""A wheel has the native kernels of its platform; without a compiler it is for every platform."""

import os
import subprocess
import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build():
    pytest.importorskip("hatchling")
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def initialized(build, root):
    """What the hook decides about a wheel of a checkout, and its warnings."""
    warnings = []
    app = SimpleNamespace(display_warning=warnings.append)
    hook = build.NativeKernels(str(root), {}, None, None, "", "wheel", app)
    data = {"artifacts": []}
    hook.initialize("standard", data)
    return data, warnings


def test_without_a_compiler_nothing_is_built_and_the_reason_is_given(build, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.NotCompiled, match="no-such-compiler was not found"):
        build.compile_into(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_script_says_in_one_line_that_it_has_no_compiler():
    done = subprocess.run(
        [sys.executable, ROOT / "hatch_build.py"],
        env={**os.environ, "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = (done.stdout + done.stderr).splitlines()
    assert line.startswith("no native kernels: no-such-compiler was not found; install g++")


def test_a_wheel_made_without_a_compiler_is_for_every_platform(build, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    stale = tmp_path / build.LIBRARY
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another machine")
    data, (warning,) = initialized(build, tmp_path)
    assert data == {"artifacts": []}, "the defaults are a pure wheel's"
    assert warning.startswith("no native CPU kernels, torch will compute: no-such-compiler")
    assert not stale.exists()


def test_a_wheel_with_kernels_is_for_their_platform_and_any_python_3(build, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "compile_into", lambda root: None)
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-x86_64")
    data, warnings = initialized(build, tmp_path)
    assert warnings == []
    assert data["artifacts"] == [build.LIBRARY.as_posix()]
    assert (data["pure_python"], data["tag"]) == (False, "py3-none-linux_x86_64")


@pytest.mark.parametrize(
    ("python", "target", "tag", "flags"),
    [
        ("linux-aarch64", None, "linux_aarch64", ()),
        ("macosx-11.0-arm64", None, "macosx_11_0_arm64", "-arch arm64 -mmacosx-version-min=11.0"),
        (
            "macosx-10.9-x86_64",
            "11.0",
            "macosx_11_0_x86_64",
            "-arch x86_64 -mmacosx-version-min=11.0",
        ),
        (
            "macosx-10.9-universal2",
            "14.0",
            "macosx_14_0_arm64",
            "-arch arm64 -mmacosx-version-min=14.0",
        ),
    ],
)
def test_the_compiler_is_given_the_platform_of_the_tag(
    build, monkeypatch, python, target, tag, flags
):
    monkeypatch.setattr(sysconfig, "get_platform", lambda: python)
    monkeypatch.setattr(build.platform, "machine", lambda: "arm64")
    monkeypatch.delenv("MACOSX_DEPLOYMENT_TARGET", raising=False)
    if target:
        monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", target)
    assert build.platform_tag() == tag
    assert build._macos_flags() == (tuple(flags.split()) if flags else ())

"""Runs the tests of the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

The kernels are compiled into a copy of the checkout, so that its own library stays as it is. Python
is not built with the sanitizers; their runtime is preloaded. A report ends the process that it is
of, and so the run: `python .ci/sanitize.py [TEST ...]`, the tests of native code by default;
`python .ci/sanitize.py --files CASES [--seed SEED]` loads as many broken files of weights instead.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("slipstream", "services", "tests", "pyproject.toml", "hatch_build.py")
TESTS = ("tests/unit/**/test_native*.py", "tests/unit/models/glide/test_glide_scorer.py")
NOT_LOADED = {"test_native_arm.py", "test_native_build.py"}
"""Tests that compile, and load no library that is sanitized."""
FILES = (
    *("GGUF", "GGUF second part", "safetensors", "config.json"),
    *("draft weights", "draft config.json", "draft blocks", "decision"),
)
"""Kinds of files (`tests/fuzz/files/weights_kinds.py`) that native code computes with."""
FLAGS = (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    *("-D_GLIBCXX_ASSERTIONS", "-fno-omit-frame-pointer", "-g", "-O1"),
)
# Libraries that the dynamic linker needs before Python starts. Without libstdc++, which Python does
# not use, AddressSanitizer finds no `__cxa_throw` to wrap and stops at the first C++ exception.
PRELOADED = ("libasan.so", "libstdc++.so")
OPTIONS = {
    # Python leaves most of its objects to the end of the process, which would be reported as leaks.
    # Memory that is not there is an error of Python's, as without the sanitizers.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=1"
    ":allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    "OMP_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
}
LIST_KERNELS = """
from contextlib import suppress
from slipstream.core.errors import InvalidRequest
from slipstream.models.native.library import kernels
for name in ("portable", "avx2", "avx2_vnni"):
    with suppress(InvalidRequest):
        print(kernels(name))
"""


def copy_checkout(into: Path) -> None:
    """Copy what the tests need, without what was built."""
    ignored = shutil.ignore_patterns("__pycache__", "lib")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=ignored, symlinks=True)
        else:
            shutil.copy(source, into / name)


def environment(root: Path) -> dict[str, str]:
    """Return the variables under which sanitized kernels can be loaded."""
    compiler = os.environ.get("CXX", "g++")
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in PRELOADED
    ]
    if unknown := [name for name in found if not Path(name).is_absolute()]:
        sys.exit(f"{compiler} has no {unknown[0]}; install GCC's sanitizers, or set CXX=g++")
    path = os.pathsep.join(
        str(root / name) for name in (".", "services/draft", "services/target", "tests")
    )
    return {**os.environ, **OPTIONS, "LD_PRELOAD": " ".join(found), "PYTHONPATH": path}


def kernels_here(root: Path, env: dict[str, str]) -> list[str]:
    """Return the kernels to run beside the fastest."""
    command = [sys.executable, "-c", LIST_KERNELS]
    return subprocess.run(
        command, cwd=root, env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()


def main(tests: list[str]) -> None:
    """Run the tests with the fastest kernels, then with each lesser set that is here; or fuzz."""
    with tempfile.TemporaryDirectory(prefix="slipstream-sanitize-") as scratch:
        root = Path(scratch)
        copy_checkout(root)
        subprocess.run([sys.executable, root / "hatch_build.py", *FLAGS], check=True)
        env = environment(root)
        if tests[:1] == ["--files"]:
            command = ("-m", "fuzz.files", "--kinds", ",".join(FILES), "--cases", *tests[1:])
            subprocess.run([sys.executable, *command], cwd=root, env=env, check=True)
            return
        found = [path for each in TESTS for path in sorted(root.glob(each))]
        named = tests or [str(path) for path in found if path.name not in NOT_LOADED]
        # `--capture=sys` leaves the sanitizers' reports on the terminal.
        pytest = [sys.executable, "-m", "pytest", "-q", "--capture=sys", "-p", "no:cacheprovider"]
        for kernels in ("", *kernels_here(root, env)):
            sys.stderr.write(f"kernels: {kernels or 'the fastest'}\n")
            one = {**env, "SLIPSTREAM_NATIVE": kernels}
            subprocess.run([*pytest, *named], cwd=root, env=one, check=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as failed:
        sys.exit(f"{failed.cmd[0]} ended with {failed.returncode}; see above")

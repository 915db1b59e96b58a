"""Builds and installs Slipstream as on a machine without a C++ compiler, and runs it there.

The build has to name what is missing in one line, the wheel has to be one for every machine, and
torch has to compute. The model has to be in the cache: `slipstream models pull smollm2-135m`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from package import ROOT, install

COMPILER = "no-such-compiler"
NOTICE = f"no native CPU kernels, torch will compute: {COMPILER} was not found"
TESTS = ("test_causal.py", "test_glide_scorer.py", "test_native_build.py", "test_loading.py")
MODEL = "smollm2-135m"
NEEDED = (
    *("slipstream", "services", "pyproject.toml", "hatch_build.py", "README.md"),
    *("LICENSE", "NOTICE"),
)


def copy_checkout(into: Path) -> None:
    """Copy what a wheel is built of: a build without a compiler removes the checkout's library."""
    into.mkdir()
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, into / name)
        else:
            shutil.copy(ROOT / name, into / name)


def build(source: Path, into: Path) -> Path:
    """Build the wheel and check it. Ends the process where it is not as it should be."""
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(into), str(source)],
        env={**os.environ, "CXX": COMPILER},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the wheel can't be built:\n{done.stdout}")
    if done.stdout.count(COMPILER) != 1 or NOTICE not in done.stdout:
        sys.exit(f"the build does not say in one line {NOTICE!r}:\n{done.stdout}")
    (wheel,) = into.glob("*.whl")
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    if libraries or not wheel.name.endswith("-py3-none-any.whl"):
        sys.exit(f"{wheel.name} is not a wheel for every machine; it has {libraries}")
    return wheel


def generate(python: Path, folder: Path) -> None:
    """Let the real model generate, and look for the warning and the text."""
    main = "from slipstream.cli.main import run; run()"
    words = ["generate", "--target", MODEL, "--max-new-tokens", "16", "Why is the sky blue?"]
    done = subprocess.run(
        [python, "-I", "-c", main, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    sys.stderr.write(done.stdout + done.stderr)
    warnings = [line for line in done.stderr.splitlines() if "no native kernels were built" in line]
    if done.returncode or not done.stdout.strip() or len(warnings) != 1:
        sys.exit("`slipstream generate` has to give a text and to warn of the missing kernels once")


def test(python: Path, folder: Path) -> None:
    """Run tests of models against the installed package."""
    shutil.copytree(ROOT / "tests", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "hatch_build.py", folder)
    paths = [path for name in TESTS for path in sorted((folder / "tests/unit").rglob(name))]
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "pythonpath=tests"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pytest, *paths], cwd=folder, env=env, check=True)


def main() -> None:
    """Build, check, generate and test."""
    with tempfile.TemporaryDirectory(prefix="slipstream-pure-") as scratch:
        here = Path(scratch)
        copy_checkout(here / "source")
        wheel = build(here / "source", here / "wheel")
        sys.stderr.write(f"{wheel.name}: {NOTICE}\n")
        python = install(wheel, here / "clean")
        generate(python, here)
        (here / "run").mkdir()
        test(python, here / "run")


if __name__ == "__main__":
    main()

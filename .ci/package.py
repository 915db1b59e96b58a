"""Builds sdist -> wheel -> clean environment, and imports every module from there.

Editable installs and checkouts can hide an empty wheel; this can't be fooled by them. The clean
environment borrows the dependencies, and nothing else, of the one that runs this script.
"""

import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
from importlib.resources import files
import slipstream

home = files("slipstream")
assert "site-packages" in str(home) and sys.prefix in str(home), home
roles = ("draft", "gateway", "router", "target")
packages = ["slipstream", *(f"slipstream_{role}" for role in roles)]
paths = [(name, importlib.import_module(name).__path__) for name in packages]
names = [at.name for name, path in paths for at in pkgutil.walk_packages(path, f"{name}.")]
for name in names:
    importlib.import_module(name)
try:
    importlib.import_module("services")
except ModuleNotFoundError:
    print(f"slipstream {slipstream.__version__}: {len(names)} modules import from the wheel")
else:
    sys.exit("the wheel has a top-level package `services`")
"""


def run(*command: str | Path, cwd: Path) -> None:
    """Run a command away from the checkout, and fail with it."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def build(into: Path) -> Path:
    """The wheel, made from the sdist and not from the checkout."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", into, cwd=ROOT)
    (sdist,) = into.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--wheel-dir", into, sdist, cwd=into)
    (wheel,) = into.glob("*.whl")
    return wheel


def check_data_files(wheel: Path) -> None:
    """Everything of the packages that git tracks is in the wheel."""
    listing = subprocess.run(
        ["git", "ls-files", "slipstream", "services/*/slipstream_*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = {re.sub(r"^services/\w+/", "", name) for name in listing.stdout.split()}
    if missing := sorted(expected - set(zipfile.ZipFile(wheel).namelist())):
        sys.exit(f"the wheel lacks {', '.join(missing)}")


def install(wheel: Path, venv_folder: Path) -> Path:
    """Make an environment of the wheel and the dependencies of this one; return its Python."""
    venv.create(venv_folder, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv_folder)}))
    zipfile.ZipFile(wheel).extractall(packages)
    # A plain .pth line adds a directory without running the .pth files in it, so the
    # editable install of this checkout stays out of sight.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv_folder / "bin" / "python"


CLIENT_ONLY = """
from importlib.util import find_spec
import slipstream.client

absent = [name for name in ("torch", "numpy", "tokenizers", "redis") if find_spec(name) is None]
assert absent == ["torch", "numpy", "tokenizers", "redis"], absent
try:
    slipstream.client.Client("127.0.0.1:1", retries=False).models()
except slipstream.client.errors.Unavailable as error:
    print(f"a client alone: {error}")
"""


def check_client(wheel: Path, venv_folder: Path) -> None:
    """The wheel without extras is a client, with nothing of an engine."""
    venv.create(venv_folder, with_pip=True)
    python = venv_folder / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "-q", "-c", constraints, wheel, cwd=venv_folder)
    run(python, "-I", "-c", CLIENT_ONLY, cwd=venv_folder)
    command = [str(venv_folder / "bin" / "slipstream"), "generate", "hello"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=venv_folder)
    if done.returncode != 2 or "pip install 'slipstream[engine]'" not in done.stderr:
        sys.exit(f"a client that is to load a model says: {done.stderr}")


def main() -> None:
    """Build the wheel, install it and import everything."""
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        wheel = build(here)
        check_data_files(wheel)
        python = install(wheel, here / "clean")
        run(python, "-I", "-c", IMPORT_EVERYTHING, cwd=here)
        check_client(wheel, here / "client")


if __name__ == "__main__":
    main()

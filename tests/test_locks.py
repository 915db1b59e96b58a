"""locks/*.lock: as pyproject.toml asks, and nothing in them without a version and a hash."""

import re
import tomllib
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from support.deployment import lock_files

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENGINES = {"engine-serve": ("engine", "serve"), "engine-serve-ray": ("engine", "serve", "ray")}
EXTRAS = {**ENGINES, "dev": ("dev",), "transformers": ("cuda", "serve")}
"""Locks of the package itself, each with its extras."""
MORE = {"transformers": ("engine-serve", "torch-cuda")}
"""Locks that are installed beside another."""
GPU = ("cuda-", "nvidia-", "triton")
LINE = re.compile(r"#.*|[\w.-]+==[\w.+]+( ; [^\\]+)?( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?")


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def locked(name):
    """A lock with what is installed beside it."""
    more = (lock_files.read(other) for other in MORE.get(name, ()))
    return dict(chain(lock_files.read(name).items(), *(other.items() for other in more)))


def asked(extras):
    """Requirements of the package with some extras, those of extras within extras included."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    for line in lines:
        found = Requirement(line)
        if found.name == "slipstream":
            optional = PROJECT["optional-dependencies"]
            lines += [other for extra in found.extras for other in optional[extra]]
        elif found.marker is None or found.marker.evaluate():
            yield found


def extras_named(requirement):
    """Packages that the extras of a requirement bring, of those that are installed."""
    for line in distribution(requirement.name).requires or ():
        part = Requirement(line)
        for extra in requirement.extras:
            if part.marker and part.marker.evaluate({**default_environment(), "extra": extra}):
                yield canonicalize_name(part.name)


@pytest.mark.parametrize("name", lock_files.names())
def test_every_package_of_a_lock_has_one_version_and_hashes_and_nothing_names_an_index(name):
    text = (lock_files.LOCKS / f"{name}.lock").read_text()
    assert [line for line in text.splitlines() if not LINE.fullmatch(line)] == []
    assert "://" not in text
    for pin in lock_files.read(name).values():
        assert pin.hashes, f"{pin.name} of {name}.lock has no hash: run `make locks`"
        assert Version(pin.version)


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_every_requirement_at_a_version_that_it_takes(name):
    pins = locked(name)
    for requirement in asked(EXTRAS[name]):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement} is not in {name}.lock: run `make locks`"
        assert requirement.specifier.contains(pin.version), f"{name}.lock: run `make locks`"


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_all_that_its_packages_need(name):
    needed = set()
    for requirement in asked(EXTRAS[name]):
        needed |= lock_files.closure(requirement.name)
        for other in extras_named(requirement):
            needed |= lock_files.closure(other)
    assert needed - set(locked(name)) == set()


@pytest.mark.parametrize("name", [at for at in lock_files.names() if at != "torch-cpu"])
def test_a_lock_has_the_versions_that_everything_is_tested_with(name):
    known = constraints()
    pins = {pin.name: pin.version for pin in lock_files.read(name).values()}
    assert {at: known[at] for at in pins if at in known} == {
        at: version for at, version in pins.items() if at in known
    }
    if name not in {"tools", "wheels"}:
        assert [at for at in pins if at not in known and not at.startswith(GPU)] == []


def test_torch_for_cpus_is_the_version_that_is_tested_built_for_cpus():
    (pin,) = lock_files.read("torch-cpu").values()
    assert (pin.name, pin.version) == ("torch", f"{constraints()['torch']}+cpu")


def test_an_image_for_cpus_has_no_library_for_gpus():
    for name in (*ENGINES, "router", "torch-cpu"):
        assert [at for at in lock_files.read(name) if at.startswith(GPU)] == []


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_needs_neither_torch_nor_transformers(name):
    needed = {canonicalize_name(each.name) for each in asked(ENGINES[name])}
    for names in (needed, lock_files.read(name), locked(name)):
        assert not {"torch", "transformers", "accelerate", "sympy"} & set(names)


def test_the_routers_lock_is_its_list():
    lines = (ROOT / "images/router.txt").read_text().splitlines()
    listed = {canonicalize_name(line) for line in lines if line and not line.startswith("#")}
    assert set(lock_files.read("router")) == listed

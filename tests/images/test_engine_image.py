"""The images of drafts and targets without a container: their Dockerfile's own steps.

Torch and the like are borrowed from the environment that runs the tests; `--chaos` installs them,
too, which takes minutes and gigabytes.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import wheels
from dockerfile import ROOT, Workshop, stages

ENGINES = ("draft", "target")
# As `python -m` does it, but torch is loaded once.
ANSWER = """
import contextlib, runpy, sys
import slipstream
print(slipstream.__file__)
for role in sys.argv[1:]:
    sys.argv = [role, "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_module(f"slipstream.{role}", run_name="__main__")
"""


def required(shop, extras):
    """Packages that the build asks pip for."""
    script, project = ROOT / "images" / "requirements.py", ROOT / "pyproject.toml"
    lines = shop.run(f'python3 {script} {project} "{extras}"', {}).splitlines()
    return {canonicalize_name(Requirement(line).name) for line in lines}


@pytest.fixture(scope="module")
def shop(builder, tmp_path_factory):
    """A root with what is ours in its place, and no packages."""
    folder = tmp_path_factory.mktemp("engine")
    made = Workshop(folder / "root", folder)
    shutil.copytree(builder.root / "own", made.root / "own")
    made.run("python3 -m venv --without-pip /app", {})
    made.carry_out(stages()["engine-tree"])
    yield made
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def borrowing(shop):
    """The tree's interpreter, with the packages of this environment behind its own."""
    (packages,) = (shop.root / "app" / "lib").glob("python*/site-packages")
    paths = [sysconfig.get_path("purelib"), *_added()]
    (packages / "borrowed.pth").write_text("\n".join(paths) + "\n")
    yield shop.root / "app" / "bin" / "python"
    (packages / "borrowed.pth").unlink()


def _added():
    """Directories that this environment's own .pth files name, ours excepted."""
    home = Path(sysconfig.get_path("purelib"))
    lines = [line for file in home.glob("*.pth") for line in file.read_text().splitlines()]
    return [line for line in lines if Path(line).name == "site-packages" and Path(line).is_dir()]


def test_the_entry_points_of_drafts_and_targets_answer_from_the_tree(borrowing):
    done = subprocess.run(
        [str(borrowing), "-c", ANSWER, *ENGINES],
        cwd="/",
        env={"PATH": os.defpath, "OMP_NUM_THREADS": "1", "HOME": str(borrowing.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    home, *said = done.stdout.splitlines()
    assert Path(home).is_relative_to(borrowing.parents[1])
    assert sum(line.startswith("usage: slipstream.") for line in said) == len(ENGINES)


def test_weights_of_drafts_are_in_the_tree(shop):
    (home,) = (shop.root / "app" / "lib").glob("python*/site-packages/slipstream")
    kept = {path.name for path in (home / "models" / "weights").glob("*/*.safetensors")}
    assert "model.safetensors" in kept


def test_engines_get_the_dependencies_of_the_package_and_of_the_extras_that_are_asked_for(shop):
    plain, serving = required(shop, ""), required(shop, "serve")
    assert {"torch", "transformers", "grpcio"} <= plain
    assert serving - plain >= {"redis", "opentelemetry-exporter-prometheus"}
    assert required(shop, "serve,ray") - serving == {"ray"}


def test_an_extra_that_is_not_there_ends_the_build(shop):
    with pytest.raises(AssertionError, match="there is no extra 'sevre'; there are dev, "):
        required(shop, "sevre")


def test_every_package_of_an_engine_has_one_version_in_the_constraints(shop):
    pins = [line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    needed = {other for name in required(shop, "serve,ray") for other in wheels.closure(name)}
    # What torch brings for GPUs has the one version that torch asks for.
    needed = {name for name in needed if not name.startswith(("nvidia-", "triton", "cuda-"))}
    assert needed - {canonicalize_name(pin) for pin in pins} == set()


@pytest.mark.parametrize(("device", "cuda"), [("cpu", None), ("cuda", "13.0")])
def test_the_torch_of_a_device_passes(shop, device, cuda):
    assert complaint_of(shop, device, cuda) == "None"


@pytest.mark.parametrize(
    ("device", "cuda", "said"),
    [
        ("cpu", "13.0", "DEVICE is cpu, but pip took a torch for CUDA 13.0: "),
        ("cuda", None, "DEVICE is cuda, but pip took a torch without CUDA: "),
        ("gpu", "13.0", "DEVICE is cpu or cuda, not 'gpu'"),
    ],
)
def test_a_torch_of_another_device_ends_the_build(shop, device, cuda, said):
    assert complaint_of(shop, device, cuda).startswith(said)


def complaint_of(shop, device, cuda):
    code = f"import torch_is_for as t; print(t.complaint({device!r}, {cuda!r}))"
    return shop.run(f'python3 -c "{code}"', {"PYTHONPATH": str(ROOT / "images")}).strip()


@pytest.mark.chaos
def test_the_whole_tree_of_an_engine_installs_and_starts(tmp_path):
    names = required(Workshop(tmp_path / "unused", tmp_path), "serve")
    needed = {other for name in {*names, "hatchling", "hiredis"} for other in wheels.closure(name)}
    shop = Workshop(tmp_path / "root", wheels.pack(needed, tmp_path / "wheels"))
    for name in ("wheel", "own", "engine-packages", "engine-tree", "engine-bill"):
        shop.carry_out(stages()[name])
    for role in ENGINES:
        assert "--address" in shop.run(f"/app/bin/python3 -m slipstream.{role} --help", {})
    assert "hatchling" not in (tmp_path / "root" / "build" / "sbom.json").read_text()

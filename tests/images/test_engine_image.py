"""The images of drafts and targets without a container: their Dockerfile's own steps.

Torch and the like are borrowed from the environment that runs the tests; `--chaos` installs them,
too, which takes minutes and gigabytes.
"""

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from support.commands import ran
from support.deployment import lock_files, wheels
from support.deployment.dockerfile import Workshop, stages

ENGINES = ("draft", "target")
# As `python -m` does it, but torch is loaded once.
ANSWER = """
import contextlib, runpy, sys
import slipstream
print(slipstream.__file__)
for role in sys.argv[1:]:
    sys.argv = [role, "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_module(f"slipstream_{role}", run_name="__main__")
"""


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
    env = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "HOME": str(borrowing.parent)}
    done = ran(borrowing, "-c", ANSWER, *ENGINES, cwd="/", env=env)
    assert done.returncode == 0, done.stderr
    home, *said = done.stdout.splitlines()
    assert Path(home).is_relative_to(borrowing.parents[1])
    assert sum(line.startswith("usage: slipstream serve ") for line in said) == len(ENGINES)


def test_engines_get_what_their_extras_ask_for():
    serving, ray = (set(lock_files.read(f"engine-{extras}")) for extras in ("serve", "serve-ray"))
    assert serving >= {"transformers", "grpcio", "redis", "opentelemetry-exporter-prometheus"}
    assert ray - serving >= {"ray"}


@pytest.mark.parametrize(("variable", "value"), [("EXTRAS", "sevre"), ("DEVICE", "gpu")])
def test_an_extra_or_a_device_without_a_lock_ends_the_build(variable, value, tmp_path):
    (step,) = stages()["engine-packages"].all("RUN")
    shop = Workshop(tmp_path / "root", tmp_path)
    for name in lock_files.names():
        shutil.copy(lock_files.LOCKS / f"{name}.lock", tmp_path / "root" / "build")
    known = {"EXTRAS": "serve", "DEVICE": "cpu", variable: value}
    with pytest.raises(AssertionError, match=f"No such file or directory: '[a-z]+-{value}.lock'"):
        shop.run(step.value, known)


@pytest.mark.chaos
def test_the_whole_tree_of_an_engine_installs_and_starts(tmp_path):
    locks = ("build", "engine-serve", "torch-cpu")
    needed = {name for lock in locks for name in lock_files.read(lock)}
    shop = Workshop(tmp_path / "root", wheels.pack(needed, tmp_path / "wheels"))
    for name in ("wheel", "own", "engine-packages", "engine-tree", "engine-bill"):
        shop.carry_out(stages()[name])
    for role in ENGINES:
        assert "--address" in shop.run(f"/app/bin/python3 -m slipstream_{role} --help", {})
    assert "hatchling" not in (tmp_path / "root" / "build" / "sbom.json").read_text()

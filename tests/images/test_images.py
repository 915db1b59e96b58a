"""The images without a container: their Dockerfile's own steps, in an empty directory.

The packages come, as wheels, out of the environment that runs the tests: no index is asked. Torch
and the like are borrowed from it; `--chaos` installs them, too, which takes minutes and gigabytes.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

import httpx2
import pytest
from packaging.utils import canonicalize_name

from support.commands import ran
from support.deployment import lock_files, wheels
from support.deployment.dockerfile import ROOT, Workshop, environment, stages
from support.services import cluster
from support.services.processes import Process, has_loaded, save_long_checkpoint

pytestmark = pytest.mark.timeout(900)  # all kernels are compiled
LEFT_OUT = {"huggingface-hub"}
HEAVY = {"torch", "transformers", "accelerate", "gguf", "numpy"}
NEEDED = """
import importlib, pkgutil, sys
SERVICES = ("slipstream_gateway", "slipstream_router")
import opentelemetry.exporter.otlp.proto.grpc.metric_exporter
import opentelemetry.exporter.otlp.proto.grpc.trace_exporter
import opentelemetry.exporter.otlp.proto.http.metric_exporter
import opentelemetry.exporter.otlp.proto.http.trace_exporter
import opentelemetry.exporter.prometheus
for part in ("slipstream.state", "slipstream.telemetry", "slipstream.text", *SERVICES):
    home = importlib.import_module(part)
    for module in pkgutil.walk_packages(home.__path__, f"{home.__name__}."):
        importlib.import_module(module.name)
print(sys.modules["slipstream"].__file__)
"""
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
def router_packages():
    """Those that images/router.txt lists."""
    lines = (ROOT / "images" / "router.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def builder(tmp_path_factory, router_packages, compiler):
    """A builder's root in which our own wheel is built and laid out, once for all images."""
    folder = tmp_path_factory.mktemp("builder")
    names = {*map(canonicalize_name, router_packages), *wheels.closure("hatchling")}
    made = Workshop(folder / "root", wheels.pack(names, folder / "wheels"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", compiler)
        for name in ("wheel", "own"):
            made.carry_out(stages()[name])
    yield made
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Image:
    """The files of an image, and the variables that it sets, with its places moved."""

    shop: Workshop

    @property
    def app(self) -> Path:
        return self.shop.root / "app"

    @property
    def variables(self) -> dict[str, str]:
        said = environment(stages(), "router")
        system = f"{self.app}/bin:{os.defpath}"
        return {name: self.shop.here(value) for name, value in said.items()} | {"PATH": system}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the image, with nothing of this environment."""
        program = self.app / "bin" / command[0]
        return ran(program, *command[1:], cwd="/", env=self.variables)


@pytest.fixture(scope="module")
def image(builder):
    for name in ("router-packages", "router-tree", "router-bill"):
        builder.carry_out(stages()[name])
    return Image(builder)


@pytest.fixture(scope="module")
def listed(router_packages):
    return [canonicalize_name(name) for name in router_packages]


def test_packages_ask_for_nothing_that_is_not_on_the_list_but_for_what_it_says(listed):
    assert len(set(listed)) == len(listed)
    missing = {name: wheels.needed(name) - {*listed} for name in listed}
    assert {name: lack for name, lack in missing.items() if lack} == {"tokenizers": LEFT_OUT}
    assert not HEAVY & {*listed}


def test_the_image_holds_these_packages_and_slipstream_only(image, listed):
    (packages,) = (image.app / "lib").glob("python*/site-packages")
    held = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert {canonicalize_name(name) for name in held} == {"slipstream", *listed}
    assert not HEAVY & {path.name for path in packages.iterdir()}


def test_all_that_a_router_can_come_to_import_is_there(image):
    done = image.run("python", "-c", NEEDED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(image.app))


def test_the_entry_point_and_the_command_answer(image):
    options = image.run("python", "-m", "slipstream_router", "--help")
    assert options.returncode == 0, options.stderr
    assert "--store-url" in options.stdout
    command = image.run("slipstream", "version")
    assert command.returncode == 0, command.stderr
    assert command.stdout.strip() == distribution("slipstream").version


def test_a_router_and_a_front_of_the_image_serve_and_have_loaded_no_torch(image, tmp_path):
    model = save_long_checkpoint(tmp_path / "tiny")
    with cluster.running(model, f"vanilla:{model}") as engines:
        flags = ["--targets", engines.target.address, "--drafter", "ngram"]
        flags += ["--address", "127.0.0.1:0"]
        flags += ["--metrics-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0"]
        env = image.variables | {"PYTHONPATH": ""}
        started = partial(Process, env=env, python=str(image.app / "bin" / "python"))
        with started("slipstream_router", *flags) as router:
            # What `helm test` runs in this image.
            address = router.ready()
            answer = image.run("slipstream", "check", "--router", address, "--no-speculation")
            assert answer.returncode == 0, answer.stderr
            of_the_image_without_torch(image, router)
            listen = ("--listen-address", "127.0.0.1:0")
            with started("slipstream_gateway", "--router", address, *listen) as front:
                assert httpx2.get(f"http://{front.ready()}/health").json() == {"status": "ok"}
                of_the_image_without_torch(image, front)


def of_the_image_without_torch(image, process):
    assert has_loaded(process.pid, str(image.app))
    assert not any(has_loaded(process.pid, name) for name in ("torch", "numpy"))


def test_the_user_reads_every_file_and_writes_none(image):
    places = [path for path in (image.app, *image.app.rglob("*")) if not path.is_symlink()]
    modes = {path: path.stat().st_mode for path in places}
    assert [str(path) for path, mode in modes.items() if mode & 0o022] == []
    assert [str(path) for path, mode in modes.items() if not mode & stat.S_IROTH] == []
    closed = [path for path, mode in modes.items() if path.is_dir() and not mode & stat.S_IXOTH]
    assert closed == []
    assert os.access(image.app / "bin" / "slipstream", os.X_OK)


def test_bytecode_is_there_and_does_not_depend_on_when_files_were_written(image):
    (packages,) = (image.app / "lib").glob("python*/site-packages")
    sources = [path for path in (packages / "slipstream").rglob("*.py") if path.stat().st_size]
    for source in sources:
        (made,) = (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")
        assert made.read_bytes()[4:8] == b"\x01\0\0\0", made  # by hash, and never compared


def test_the_image_has_the_data_files_of_the_package(image):
    (home,) = (image.app / "lib").glob("python*/site-packages")
    found = ran("git", "ls-files", "slipstream", "services/*/slipstream_*", cwd=ROOT)
    tracked = [name for name in found.stdout.splitlines() if (ROOT / name).exists()]
    installed = [re.sub(r"^services/\w+/", "", name) for name in tracked]
    assert [name for name in installed if not (home / name).is_file()] == []
    assert (home / "slipstream" / "data" / "prompts.jsonl").read_bytes() == (
        ROOT / "slipstream" / "data" / "prompts.jsonl"
    ).read_bytes()


def test_the_bill_of_the_image_names_everything_in_it(image, listed):
    bill = json.loads((image.shop.root / "build" / "sbom.json").read_text())
    assert bill["metadata"]["component"]["name"] == "slipstream-router"
    named = {
        part["purl"].partition("@")[0].removeprefix("pkg:pypi/") for part in bill["components"]
    }
    assert {"slipstream", *listed} <= named
    assert not {*HEAVY, "pip", "hatchling"} & named


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

"""The router's image without a container: its Dockerfile's own steps, in an empty directory.

The packages come, as wheels, out of the environment that runs the tests: no index is asked.
"""

import json
import os
import re
import stat
import subprocess
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

import httpx2
import pytest
from packaging.utils import canonicalize_name

from support.commands import ran
from support.deployment import wheels
from support.deployment.dockerfile import ROOT, Workshop, environment, stages
from support.services import cluster
from support.services.processes import Process, has_loaded, save_long_checkpoint

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

"""The images, built by Podman and run as docs/images.md says. Takes minutes, and the network."""

import re
import subprocess
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from packaging.utils import canonicalize_name

from support.commands import ROOT, ran, ran_python
from support.deployment import lock_files
from support.deployment.containers import CERTIFICATES, Podman, lack
from support.deployment.dockerfile import ROLES
from support.deployment.pages import fences

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(lack() is not None, reason=f"no containers here: {lack()}"),
]
PAGE = (ROOT / "docs" / "images.md").read_text()
(SESSION,) = [code for _, _, code in fences(PAGE) if "docker network create" in code]
FLAGS = re.search(r'^HARDENED="(.*)"$', SESSION, re.MULTILINE)[1]
TRUSTING = f"{FLAGS} --volume {CERTIFICATES}:{CERTIFICATES}:ro"
FILLED, _, STARTED = SESSION.replace(FLAGS, TRUSTING).partition("\n\n")
"""Commands of the page that make the network and fill the volume; those that run services."""
PROMPT = "Why is the sky blue?"
PROMISED = {"router": ("router", 150)} | dict.fromkeys(("draft", "target"), ("engine-serve", 250))
STOP_S = 60
LOOK = """
id -u
grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d ' \\t'
for place in /app /usr /models; do touch $place/x 2>/dev/null && echo "$place can be written"; done
mktemp > /dev/null
find /app ! -type l -perm /022 -o ! -type l ! -perm -004 -o -type d ! -perm -001
find /app/lib -path '*/slipstream*' -name '*.py' -size +0 | while read -r file; do
    set -- "${file%/*}"/__pycache__/"$(basename "$file" .py)".*.pyc
    test "$(head -c 8 "$1" | tail -c 4 | od -An -tx1 | tr -d ' ')" = 01000000 || echo "$file"
done
"""
"""The rights of a container; files with the wrong ones; sources whose bytecode is not by hash."""
RIGHTS = ["65532", "CapEff:" + "0" * 16, "CapBnd:" + "0" * 16, "NoNewPrivs:1"]


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    with Podman(tmp_path_factory.mktemp("podman")) as engine:
        engine.build(ROLES)
        yield engine


@pytest.fixture(scope="module")
def hardened(podman):
    """The flags of the page, the network to use them in, and a volume with the page's model."""
    done = ran("bash", "-euc", FILLED, env=podman.variables)
    assert done.returncode == 0, done.stderr
    return ["run", *FLAGS.split()]


@pytest.fixture
def answer(podman, hardened):
    """What the services of the page answer to its last command."""
    commands = f'HARDENED="{FLAGS}"\n{STARTED}'
    done = ran("bash", "-euo", "pipefail", "-c", commands, env=podman.variables)
    assert done.returncode == 0, done.stderr
    yield done.stdout
    podman("rm", "--force", "--time", 0, *ROLES, "http")


def streamed(podman, hardened):
    """A long text that a client of the router's image writes while it comes."""
    words = ["podman", *hardened, "--rm", "--entrypoint", "slipstream", podman.image("router")]
    words += ["generate", "--quiet", "--router", "router:50051", "--max-new-tokens", "400", PROMPT]
    return subprocess.Popen(words, env=podman.variables, stdout=subprocess.PIPE, text=True)


NAMES = "from importlib.metadata import distributions; print(*(at.name for at in distributions()))"


@pytest.mark.parametrize("role", ROLES)
def test_a_container_has_no_rights_and_writes_nothing_but_to_tmp(podman, hardened, role):
    look = [*hardened, "--rm", "--entrypoint", "sh", podman.image(role), "-euc", LOOK]
    assert podman(*look).split() == RIGHTS


@pytest.mark.parametrize("role", ROLES)
def test_an_image_holds_what_its_lock_names_and_is_no_larger_than_promised(podman, role):
    image, (lock, most_mb) = podman.image(role), PROMISED[role]
    found = podman("run", "--rm", "--entrypoint", "python", image, "-c", NAMES).split()
    assert {*map(canonicalize_name, found)} == {"slipstream", *lock_files.read(lock)}
    assert int(podman("image", "inspect", "--format", "{{.Size}}", image)) <= most_mb * 1e6


def test_the_services_of_the_page_answer_as_embedded_engines_and_stop_in_time(
    podman, hardened, answer, real_model
):
    command = ["generate", "--quiet", "--target", "smollm2-135m-q4_1", PROMPT]
    alone = ran_python("-m", "slipstream.cli.main", *command)
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.strip() in answer
    for role in ROLES:
        with grpc.insecure_channel(f"{podman.address(role)}:50050") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            probe = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert probe.status == health_pb2.HealthCheckResponse.SERVING
    with streamed(podman, hardened) as client:
        whole = client.stdout.read()
    with streamed(podman, hardened) as client:
        first = client.stdout.read(1)
        assert client.poll() is None
        podman("stop", "--time", STOP_S, "router")
        assert first + client.stdout.read() == whole
    began = time.monotonic()
    podman("stop", "--time", STOP_S, "draft", "target")
    assert time.monotonic() - began < STOP_S
    codes = [podman("inspect", "--format", "{{.State.ExitCode}}", role) for role in ROLES]
    assert [int(code) for code in codes] == [0, 0, 0]


def written(podman, awaited):
    """All that the container `other` has written, once that is in it."""
    deadline = time.monotonic() + STOP_S
    while awaited not in (said := podman("logs", "other")):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    return said


def test_a_start_as_any_user_with_a_full_tmp_stops_in_time_and_compiles_nothing(podman, hardened):
    full = [flag.replace("/tmp", "/tmp:size=4k") for flag in hardened]
    podman(
        *(*full, "--detach", "--tty", "--name", "other", "--user", "12345:0"),
        *("--volume", "models:/models:ro", "--env", "PYTHONVERBOSE=1", podman.image("target")),
        *("--model", "smollm2-135m-q4_1"),
    )
    written(podman, "INFO slipstream.target configuration")
    podman("stop", "--time", STOP_S, "other")
    assert int(podman("inspect", "--format", "{{.State.ExitCode}}", "other")) == 128 + 15
    podman("start", "other")
    said = written(podman, "\nready ")
    assert re.findall(r"code object from '?(/app/\S+\.py)\b", said) == []
    podman("rm", "--force", "other")


def test_models_that_can_not_be_written_are_one_sentence(podman, hardened):
    inside = ["--entrypoint", "slipstream", podman.image("target"), "models", "pull"]
    said = podman(*hardened, "--rm", *inside, "smollm2-135m-q4_1", is_refused=True)
    assert "error: the model cache /models can't be written (Read-only file system); " in said

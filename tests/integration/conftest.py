"""Models that the services of most tests serve."""

import pytest

from slipstream.client import Client
from support.services import fleet
from support.services.background import on_thread
from support.services.processes import save_long_checkpoint
from support.services.stalls import check_stalls, watching
from support.state.redis_server import redis_server


@pytest.fixture(autouse=True)
def unstalled_loops():
    """Callbacks of the loops of this process take no longer than the limit."""
    with watching() as stalls:
        yield
    check_stalls(stalls)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return fleet.save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def targets(folder):
    first = fleet.target_worker(folder)
    return [first, first.twin()]


@pytest.fixture
def draft(folder):
    return fleet.draft_worker(str(fleet.glide_of(folder)), folder)


@pytest.fixture
def server():
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save_long_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(scope="session")
def plain(model):
    """Plain decoding in one process: a prompt and a number of tokens to token ids."""
    with Client.embedded(str(model), "none", dtype="float32") as client:
        yield lambda prompt, most: client.generate(prompt, max_tokens=most).token_ids


@pytest.fixture(scope="session")
def served(folder):
    """A target that serves tests of all files, on a loop of its own."""
    worker = fleet.target_worker(folder)
    with on_thread(lambda _: fleet.running(worker)):
        yield worker

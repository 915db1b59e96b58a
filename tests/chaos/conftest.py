"""What chaos tests share: the model, the undisturbed answers, a cluster and the report."""

import pytest
import pytest_asyncio

import fleet
from chaos import cluster as clusters
from chaos import nursery
from chaos.report import Report
from chaos.traffic import ERRANDS, plain_answers
from redis_server import valkey_binary

_REPORT = pytest.StashKey[Report]()


def pytest_configure(config):
    config.stash[_REPORT] = Report(config.getoption("--chaos-report"))


def pytest_terminal_summary(terminalreporter, config):
    report = config.stash.get(_REPORT, None)
    if report is not None and report.scenarios:
        terminalreporter.section("chaos")
        for line in report.lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def report(pytestconfig):
    return pytestconfig.stash[_REPORT]


@pytest.fixture(scope="session")
def num_kills(pytestconfig):
    return pytestconfig.getoption("--chaos-kills")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    valkey_binary()  # or skip before anything is made
    nursery.prepare()
    return fleet.save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def answers(model):
    """What plain decoding in one process says to every errand."""
    found = plain_answers(str(model))
    assert {len(tokens) for each in found.values() for tokens in each} == {
        errand.max_tokens for errand in ERRANDS
    }
    return found


@pytest.fixture(scope="module")
def cluster_options():
    """What is special about the cluster of a file."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model, tmp_path_factory, cluster_options):
    folder = tmp_path_factory.mktemp("cluster")
    async with clusters.running(model, folder, **cluster_options) as cluster:
        yield cluster

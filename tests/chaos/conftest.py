"""What chaos tests share: the model, the load with its answers, a cluster and the report."""

from itertools import chain

import pytest
import pytest_asyncio

from chaos import cluster as clusters
from chaos import nursery
from chaos.cluster import REAL, real_pair, tiny_pair
from chaos.report import Report
from chaos.scenario import MOST_TOKENS, Load
from chaos.traffic import ERRANDS, plain_answers
from support.services.stalls import check_stalls
from support.state.redis_server import valkey_binary

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
def pair(request, pytestconfig, tmp_path_factory):
    valkey_binary()  # or skip before anything is made
    nursery.begin(tmp_path_factory.mktemp("nursery"))
    if pytestconfig.getoption("--chaos-model") == REAL:
        request.getfixturevalue("real_model")
        return real_pair()
    return tiny_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def errands():
    return ERRANDS


@pytest.fixture(scope="module")
def load(pair, errands):
    """It, with what plain decoding in one process says."""
    errands = pair.shortened(errands)
    answers = plain_answers(pair.target, errands)
    lengths = {errand.name: {len(tokens) for tokens in answers[errand.name]} for errand in errands}
    assert lengths == {errand.name: {errand.max_tokens} for errand in errands}
    return Load(errands, answers, most_tokens=MOST_TOKENS // pair.share)


@pytest.fixture(scope="module")
def cluster_options():
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(cluster_options, pair, load, report, tmp_path_factory):
    """All of it running; what it needs has loaded while the answers were made."""
    assert load.answers
    nursery.finish()
    folder = tmp_path_factory.mktemp("cluster")
    async with clusters.running(pair, folder, **cluster_options) as cluster:
        yield cluster
    for role, found in cluster.stalls().items():
        report.stalls.setdefault(role, []).extend(found)
    report.write()
    check_stalls(chain.from_iterable(cluster.stalls().values()))

"""What every test shares: the real model when it is there, and a skip for missing hardware."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REAL_MODEL = "smollm2-135m"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-model",
        action="store_true",
        help="fail, rather than skip, tests of the real model when it is not in the cache",
    )
    parser.addoption("--chaos", action="store_true", help="run the long chaos tests, too")
    parser.addoption(
        "--chaos-kills", type=int, default=50, metavar="N", help="kills of each role there"
    )
    parser.addoption(
        "--chaos-report", type=Path, metavar="FILE", help="write what they measured there as JSON"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--chaos"):
        long = [item for item in items if item.get_closest_marker("chaos")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
    _spread(items)
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def num_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models run on one thread: more only wait for each other. The real one takes all."""
    torch = sys.modules.get("torch")
    if torch is None or request.node.get_closest_marker("real"):
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _spread(items: list[pytest.Item]) -> None:
    """Long tests first, half of them for each of two processes, which share what is left."""
    long = [item for item in items if item.get_closest_marker("real")]
    short = [item for item in items if not item.get_closest_marker("real")]
    middle = len(short) // 2
    items[:] = [*long[::2], *short[:middle], *long[1::2], *short[middle:]]


@pytest.fixture(scope="session")
def real_model(pytestconfig: pytest.Config) -> Path:
    """The real model's directory. Tests download nothing: set-up has fetched it, or they skip."""
    from slipstream.core.errors import ModelNotFound
    from slipstream.models.store.resolve import find_local

    try:
        return find_local(REAL_MODEL)
    except ModelNotFound as missing:
        if pytestconfig.getoption("--require-model"):
            raise
        pytest.skip(f"{missing}")

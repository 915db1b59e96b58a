"""What every test shares: the real model when it is there, and a skip for missing hardware."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from slipstream.models.threads import num_threads, set_num_threads

# What one process has compiled is there for all that a test starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("TRITON_INTERPRET", str(int(not Path("/dev/nvidiactl").exists())))

REAL_MODEL = "smollm2-135m"
UNIT = Path(__file__).parent / "unit"
settings.register_profile("untimed", deadline=None)  # a machine may be busy
settings.load_profile("untimed")


@cache
def _grammars_of_iris() -> Any:
    del sys.modules["rfc3987_syntax"]
    return import_module("rfc3987_syntax")


# jsonschema imports 38 grammars at once, which takes seconds. The first IRI to be checked does now.
sys.modules["rfc3987_syntax"] = SimpleNamespace(
    is_valid_syntax=lambda *words: _grammars_of_iris().is_valid_syntax(*words)
)


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
        "--chaos-model",
        choices=("tiny", "real"),
        default="tiny",
        help="what the services serve there",
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


def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of every later search for garbage."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let modules go at the end, whose libraries name what is left otherwise."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def cuda_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of a GPU have a simulated one where there is none."""
    with ExitStack() as stack:
        if request.node.get_closest_marker("gpu") is not None:
            import torch

            if not torch.cuda.is_available():
                from support.cuda.gpu import simulated_gpu

                stack.enter_context(simulated_gpu())
        yield


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models run on one thread: more only wait for each other. The real one takes all."""
    if request.node.get_closest_marker("real"):
        yield
        return
    before = num_threads()
    set_num_threads(1)
    yield
    set_num_threads(before)


def _spread(items: list[pytest.Item]) -> None:
    """Long tests first, every other file of them for each of two processes.
    These share what is left: unit tests, which lose little when a file is torn apart."""
    files: dict[tuple[bool, Path], list[pytest.Item]] = {}
    for item in items:
        is_real = item.get_closest_marker("real") is not None
        if is_real or not item.path.is_relative_to(UNIT):
            files.setdefault((not is_real, item.path), []).append(item)
    long = [files[key] for key in sorted(files)]
    first, second = [*chain(*long[::2])], [*chain(*long[1::2])]
    chosen = {*first, *second}
    short = [item for item in items if item not in chosen]
    middle = max(len(items) // 2 - len(first), 0)
    items[:] = [*first, *short[:middle], *second, *short[middle:]]


@pytest.fixture(scope="session")
def real_model(pytestconfig: pytest.Config) -> Path:
    """The real model's directory. Tests download nothing: set-up has fetched it, or they skip."""
    from slipstream.core.errors import ModelNotFound
    from slipstream.models.format.resolve import find_local

    try:
        find_local(f"{REAL_MODEL}-q4_1")  # the default of every command
        return find_local(REAL_MODEL)
    except ModelNotFound as missing:
        if pytestconfig.getoption("--require-model"):
            raise
        pytest.skip(f"{missing}")


@pytest.fixture(scope="session")
def hatch_build():
    pytest.importorskip("hatchling")
    spec = spec_from_file_location("hatch_build", Path(__file__).parents[1] / "hatch_build.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def compiler() -> str:
    """A C++ compiler that shares objects with the installation and with all runs of the tests."""
    from support.deployment.objects import keeping_compiler

    return keeping_compiler(Path(sys.prefix) / "objects") or "c++"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from support.network.certificates import certificates

    return certificates(tmp_path_factory.mktemp("origin"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from support.network.certificates import certificates

    return certificates(tmp_path_factory.mktemp("other"))

"""A builder's root in which our own wheel is built and laid out, once for all images."""

import shutil
from collections.abc import Iterator

import pytest
from packaging.utils import canonicalize_name

from support.deployment import wheels
from support.deployment.dockerfile import ROOT, Workshop, stages


@pytest.fixture(scope="session")
def router_packages() -> list[str]:
    """Those that images/router.txt lists."""
    lines = (ROOT / "images" / "router.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="session")
def builder(
    tmp_path_factory: pytest.TempPathFactory, router_packages: list[str]
) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("builder")
    names = {*map(canonicalize_name, router_packages), *wheels.closure("hatchling")}
    made = Workshop(folder / "root", wheels.pack(names, folder / "wheels"))
    for name in ("wheel", "own"):
        made.carry_out(stages()[name])
    yield made
    shutil.rmtree(folder)

"""A model, and a router with services that serve it."""

import pytest

from slipstream.client import AsyncClient, Client
from support.models import tiny_checkpoint
from support.services.cluster import running


@pytest.fixture(params=[Client, AsyncClient], ids=["threads", "asyncio"])
def kind(request):
    """A client of threads, and one of asyncio: the same laws."""
    return request.param


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tiny_checkpoint.save_checkpoint(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def router(folder):
    with running(folder, f"vanilla:{folder}") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def embedded(folder):
    with Client.embedded(str(folder), f"vanilla:{folder}", dtype="float32") as client:
        yield client

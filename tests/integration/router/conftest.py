"""A target that tests start behind their routers, and a router that they share."""

import time

import pytest

from slipstream.client import AsyncClient, Client
from support.models.tiny_checkpoint import tiny_llama
from support.models.tiny_eagle import save_for
from support.services.cluster import running
from support.services.fleet import glide_of, num_ready, stub_of, target_worker


@pytest.fixture
def target(folder):
    return target_worker(folder)


@pytest.fixture(scope="module")
def shared_router(folder):
    """The address of a router with the defaults over a target."""
    with running(folder) as cluster:
        yield cluster.address


@pytest.fixture(scope="module")
def trio(folder, tmp_path_factory):
    """A target with a GliDe draft, a head and a plain draft; no test may stop them."""
    head = save_for(tiny_llama(), tmp_path_factory.mktemp("head"))
    drafts = (str(glide_of(folder)), f"eagle3:{head}", f"vanilla:{folder}")
    with running(folder, *drafts) as cluster:
        with Client(cluster.address) as client:
            while num_ready(client.server_info(), "draft") < len(drafts):
                time.sleep(0.01)
        yield cluster


@pytest.fixture
async def client(shared_router):
    async with AsyncClient(shared_router, retries=False) as client:
        yield client


@pytest.fixture
async def stub(shared_router):
    async with stub_of(shared_router) as stub:
        yield stub

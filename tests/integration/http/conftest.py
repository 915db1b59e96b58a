"""A router with its services, the HTTP front before it, and a client of each.

A module may have its own `DRAFT`, and options of its front, `FRONT`.
"""

import pytest

from slipstream.client import Client
from support.services.cluster import running
from support.services.http_front import client_of, fronted
from support.services.processes import save_long_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return save_long_checkpoint(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def router(checkpoint, request):
    draft = getattr(request.module, "DRAFT", f"vanilla:{checkpoint}")
    with running(checkpoint, draft) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def url(router, request):
    with fronted(router.address, **getattr(request.module, "FRONT", {})) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with client_of(url) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(router):
    with Client(router.address) as client:
        yield client

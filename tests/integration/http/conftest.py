"""A router with its services, the HTTP front before it, and a client of each.

A module may have its own `DRAFT`, and options of its front, `FRONT`.
"""

from contextlib import ExitStack
from functools import cache

import pytest

from slipstream.client import Client
from support.services.cluster import running
from support.services.http_front import client_of, fronted


@pytest.fixture(scope="session")
def routers(model):
    """A router for each draft that modules have, from the first of them on."""
    with ExitStack() as stack:
        yield cache(lambda draft: stack.enter_context(running(model, draft)))


@pytest.fixture(scope="module")
def router(routers, model, request):
    return routers(getattr(request.module, "DRAFT", f"vanilla:{model}"))


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

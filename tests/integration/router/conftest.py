"""A target and a draft that tests start behind their routers."""

import pytest

from support.services.fleet import draft_worker, glide_of, target_worker


@pytest.fixture
def target(folder):
    return target_worker(folder)


@pytest.fixture
def draft(folder):
    return draft_worker(str(glide_of(folder)), folder)

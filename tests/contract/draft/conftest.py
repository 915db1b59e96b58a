"""The tiny models that drafts and targets serve."""

import pytest

from support.services.scripted_keys import true_engine, true_keys
from support.services.tiny_services import Models


@pytest.fixture(scope="module")
def models():
    return Models()


@pytest.fixture(scope="module")
def engine(models):
    return true_engine(models)


@pytest.fixture(scope="module")
def keys(engine):
    return true_keys(engine)

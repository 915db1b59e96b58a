"""The tiny models that drafts and targets serve."""

import pytest

from support.services.scripted_keys import true_engine, true_keys
from support.services.tiny_services import Models
from support.telemetry.listening import Listener


@pytest.fixture(scope="module")
def models():
    return Models()


@pytest.fixture(scope="module")
def keys(models):
    return true_keys(true_engine(models))


@pytest.fixture
def heard():
    return Listener()

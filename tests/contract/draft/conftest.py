"""The tiny models that drafts and targets serve."""

import pytest

from support.services.scripted_keys import PROMPT, true_keys
from support.services.tiny_services import Models, target_here


@pytest.fixture(scope="module")
def models():
    return Models()


@pytest.fixture(scope="module")
def engine(models):
    """The target that holds the true keys."""
    return target_here(models, PROMPT)


@pytest.fixture(scope="module")
def keys(engine):
    return true_keys(engine)

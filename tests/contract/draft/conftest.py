"""The tiny models that drafts and targets serve."""

import pytest

from support.services.tiny_services import Models


@pytest.fixture(scope="module")
def models():
    return Models()

"""A tiny target, and a draft that often agrees with it."""

import pytest

from support.models.tiny_runs import agreeing_models


@pytest.fixture(scope="module")
def models():
    return agreeing_models()

"""Models that the services of most tests serve."""

import pytest

from support.services import fleet


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fleet.save_models(tmp_path_factory.mktemp("models"))

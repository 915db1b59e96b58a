"""The chart as each of its value files renders it."""

import pytest

from support.deployment.charts import CASES, rendered


@pytest.fixture(params=CASES)
def documents(request):
    return rendered(request.param)

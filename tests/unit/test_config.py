"""Settings come from the environment alone, and nonsense in it is refused."""

from pathlib import Path

import pytest

from slipstream.config import load_settings
from slipstream.core.errors import InvalidRequest


def test_the_cache_directory_is_the_one_the_environment_names():
    assert load_settings({"SLIPSTREAM_CACHE": "/a/b"}).cache_dir == Path("/a/b")


def test_without_a_choice_the_cache_lies_in_the_users_cache_directory():
    assert load_settings({"HOME": "/u"}).cache_dir == Path("/u/.cache/slipstream/models")
    assert load_settings({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/slipstream/models")


@pytest.mark.parametrize(("value", "offline"), [("", False), ("0", False), ("1", True)])
def test_offline_is_a_switch(value, offline):
    assert load_settings({"HOME": "/u", "SLIPSTREAM_OFFLINE": value}).offline is offline


def test_a_switch_that_is_neither_on_nor_off_is_refused():
    with pytest.raises(InvalidRequest, match="SLIPSTREAM_OFFLINE is 'maybe'"):
        load_settings({"HOME": "/u", "SLIPSTREAM_OFFLINE": "maybe"})

"""Laws of the options of a store, and of what is imported for it."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.state.factory import open_store
from slipstream.state.options import Address, StoreOptions, parse_address
from slipstream.state.store import Bounds

SECRET = "nobody must see this"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://a", Address("a", 6379)),
        ("redis://a:1/2", Address("a", 1, db=2)),
        ("rediss://[::1]:1/", Address("::1", 1, is_tls=True)),
        ("unix:///a/b.sock?db=3", Address(path="/a/b.sock", db=3)),
    ],
)
def test_a_url_names_one_endpoint(url, address):
    assert parse_address(url) == address


NO_ADDRESSES = [
    *("", "a:1", "http://a", "redis://", "redis://a:0", "redis://a:99999"),
    *("redis://a:b", "redis://a:123456", "redis://a/main", "redis://a/1/2", "redis://[::1"),
    *(f"redis://a?password={SECRET}", f"redis://a#{SECRET}", "unix://a", "unix://"),
    *(f"unix:///a?password={SECRET}", "unix://a/b"),
    *("redis://a,b", "redis+sentinel://a/main", "rediss+cluster://a,b:2"),
]
WITH_PASSWORDS = [f"redis://:{SECRET}@a", "redis://u@a", "redis+cluster://a,u:p@b"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(({"url": url}, "store_url .* must be redis://HOST") for url in NO_ADDRESSES),
        *(({"url": url}, "store_password_file") for url in WITH_PASSWORDS),
        ({"prefix": ""}, "store_prefix"),
        ({"prefix": "a{b}"}, "store_prefix"),
        ({"timeout_s": 0.0}, "store_timeout_s"),
        ({"timeout_s": float("nan")}, "store_timeout_s"),
        ({"cert": Path("a")}, "store_cert and store_key"),
        ({"ca": Path("a")}, "rediss"),
        ({"url": None, "user": "u"}, "store_user is given, but there is no store_url"),
        ({"url": None, "password": SECRET}, "store_password is given"),
    ],
)
def test_what_makes_no_sense_is_refused_and_no_password_repeated(given, said):
    with pytest.raises(InvalidRequest, match=said) as refused:
        StoreOptions(**{"url": "redis://a", **given})
    assert SECRET not in str(refused.value)


def test_a_password_is_in_no_text_of_the_options():
    options = StoreOptions("redis://a", password=SECRET)
    assert SECRET not in repr(options) + str(options) + str(options.address())


def test_a_password_comes_from_one_place(tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    options = StoreOptions("redis://a", password_file=file)
    assert options.secret() == SECRET
    assert StoreOptions("redis://a", password=SECRET).secret() == SECRET
    assert StoreOptions().secret() is None
    with pytest.raises(InvalidRequest, match="given twice"):
        replace(options, password=SECRET)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", None])
def test_a_password_file_that_says_nothing_is_refused(tmp_path, content):
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=f"{file}"):
        StoreOptions("redis://a", password_file=file)


def test_redis_is_needed_only_where_it_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("slipstream.state.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)  # as if it were not installed
    open_store(StoreOptions(), Bounds(), time.monotonic, next_fence=int)
    said = r"store_url needs the package redis: pip install 'slipstream\[serve\]'"
    with pytest.raises(InvalidRequest, match=said):
        open_store(StoreOptions("redis://a"), Bounds(), time.monotonic, next_fence=int)

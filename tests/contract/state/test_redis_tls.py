"""TLS to Redis, both sides with certificates, and a user that may do only what docs say."""

import hashlib
import re
from dataclasses import replace

import pytest

from slipstream.core.errors import Unavailable
from slipstream.state.options import StoreOptions
from support.commands import ROOT
from support.network.certificates import certificates
from support.network.ports import free_port
from support.state.redis_server import debian_binary, redis_server
from support.state.session_stores import begins, opened, store_of, told

PASSWORD = "nobody must see this"
DIGEST = hashlib.sha256(PASSWORD.encode()).hexdigest()


def documented_user():
    """The line of the user, as it stands in the docs."""
    text = (ROOT / "docs" / "sessions.md").read_text()
    (line,) = re.findall(r"^user slipstream .*$", text, re.MULTILINE)
    return line


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Certificates, in files that one test replaces."""
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(made):
    """One that talks TLS only, to those with a certificate, and knows the documented user."""
    users = made.folder / "users.acl"
    line = documented_user().replace("#PASSWORD", f"#{DIGEST}")
    users.write_text(f"{line}\nuser default on nopass ~* &* +@all\n")
    flags = ["--tls-auth-clients", "yes", "--aclfile", str(users)]
    flags += ["--tls-ca-cert-file", str(made.ca)]
    flags += ["--tls-cert-file", str(made.cert("redis")), "--tls-key-file", str(made.key("redis"))]
    options = {"port": free_port(), "binary": debian_binary(), "is_tls": True}
    with redis_server(*flags, **options) as server:
        yield server


@pytest.fixture
def options(server, made):
    files = {"ca": made.ca, "cert": made.cert("router"), "key": made.key("router")}
    who = {"user": "slipstream", "password": PASSWORD}
    return StoreOptions(server.url, **who, **files, timeout_s=10.0)


async def refusal(options):
    """Why a session can't be had."""
    async with store_of(options) as store:
        with pytest.raises(Unavailable) as refused:
            await store.acquire(begins())
    assert PASSWORD not in str(refused.value)
    return str(refused.value)


def test_the_documented_user_may_do_what_scripts_do_and_nothing_else():
    allowed = re.findall(r" \+(\S+)", documented_user())
    texts = [path.read_text() for path in (ROOT / "slipstream" / "state" / "lua").iterdir()]
    called = re.findall(r"redis\.p?call\('([A-Z]+)'", "".join(texts))
    assert {name.upper() for name in allowed} == {"EVAL", "EVALSHA", *called}


async def test_a_wrong_password_is_said_and_not_shown(options):
    for wrong in ({"password": "guessed"}, {"user": "guessed"}):
        text = await refusal(replace(options, **wrong))
        assert "does not take this user or password" in text
        assert "guessed" not in text


async def test_what_the_user_may_not_do_and_files_that_are_missing_are_said(options, tmp_path):
    assert "see its ACL" in await refusal(replace(options, prefix="another"))
    assert "can't be reached (No such file" in await refusal(replace(options, ca=tmp_path / "no"))


async def test_neither_side_talks_to_strangers_or_without_tls(options, tmp_path):
    url = options.url.replace("rediss", "redis")
    plain = replace(options, url=url, ca=None, cert=None, key=None)
    assert "can't be reached" in await refusal(plain)
    other = certificates(tmp_path)
    assert "not trusted" in await refusal(replace(options, ca=other.ca))
    for stranger in (None, None), (other.cert("router"), other.key("router")):
        text = await refusal(replace(options, cert=stranger[0], key=stranger[1]))
        assert re.search("does not agree on TLS|can't be reached", text)


async def test_new_certificates_need_no_new_client(server, options, made, tmp_path):
    other = certificates(tmp_path)
    async with store_of(options) as store:
        await told(store, begins(), opened(5, 6, 7))
        server.kill()
        files = [f"{role}.{end}" for role in ("redis", "router") for end in ("pem", "key")]
        made.replace(other, "ca.pem", *files)
        server.start()
        await told(store, begins(), opened(5, 6, 7))

"""Laws of keys: whose token opens the API, what a file may say, and how it is followed."""

import hmac
import logging
import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.core.errors import InvalidRequest, Unauthenticated
from slipstream.state.access import Access, Entry, parse_keys
from slipstream.state.quotas import QuotaLimits
from support.network.key_files import digest, key, write_keys

ALICE, BOB = "slip_alice-token", "slip_bob-token"


@pytest.fixture
def now():
    """Time that passes when told."""
    return SimpleNamespace(now_s=100.0, day=date(2026, 11, 21))


@pytest.fixture
def file(tmp_path):
    return write_keys(tmp_path / "keys.toml", key("alice", ALICE, max_concurrent=8))


@pytest.fixture
def access(file, now):
    return Access(file, clock=lambda: now.now_s, today=lambda: now.day)


def shown(token):
    return (("user-agent", "x"), ("authorization", f"Bearer {token}"))


def is_let_in(access, token):
    try:
        access.check(shown(token))
    except Unauthenticated:
        return False
    return True


def test_without_a_file_every_client_comes_in_without_a_name():
    assert Access(None).check(()) == Entry()


def test_a_token_of_the_file_opens_as_its_key_and_no_other_does(tmp_path):
    bob = key("bob", BOB, requests_per_minute=60, tokens_per_minute=1000)
    access = Access(write_keys(tmp_path / "keys.toml", key("alice", ALICE), bob))
    alice, bob = access.check(shown(ALICE)), access.check(shown(BOB))
    assert (alice.name, alice.limits) == ("alice", QuotaLimits())
    assert (bob.name, bob.limits) == ("bob", QuotaLimits(60, 1000))
    for wrong in (ALICE[:-1], ALICE + "x", "", digest(ALICE), f" {ALICE}"):
        with pytest.raises(Unauthenticated) as refused:
            access.check(shown(wrong))
        assert "alice" not in str(refused.value)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (),
        (("authorization", ALICE),),
        (("authorization", f"bearer {ALICE}"),),
        (("authorization", f"Basic {ALICE}"),),
        (*shown(ALICE), *shown(ALICE)),
        (("authorization-bin", f"Bearer {ALICE}".encode()),),
    ],
)
def test_a_token_is_shown_once_and_as_a_bearer_token_or_not_at_all(access, metadata):
    with pytest.raises(Unauthenticated, match="has no bearer token"):
        access.check(metadata)


def test_every_wrong_token_is_compared_with_every_key(tmp_path, monkeypatch):
    keys = [key(f"k{number}", f"token-{number}") for number in range(5)]
    access, compared = Access(write_keys(tmp_path / "keys.toml", *keys)), []

    def counting(one, other):
        compared.append(other)
        return hmac_compare(one, other)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", counting)
    for token in ("token-", "x", "token-0", "token-4", "t" * 1000):
        is_let_in(access, token)
        assert compared == [digest(f"token-{number}") for number in range(5)]
        compared.clear()


def test_a_key_opens_until_the_day_on_which_it_expires(tmp_path, now):
    file = write_keys(tmp_path / "keys.toml", key("alice", ALICE, expires="2027-01-31"))
    access = Access(file, today=lambda: now.day)
    now.day = date(2027, 1, 30)
    assert is_let_in(access, ALICE)
    now.day = date(2027, 1, 31)
    with pytest.raises(Unauthenticated, match="the token of the key 'alice' has expired"):
        access.check(shown(ALICE))


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_has_changed_is_read_again_and_looked_at_once_a_second(
    file, access, now, is_replaced
):
    text = key("bob", BOB, max_concurrent=10)
    if is_replaced:
        write_keys(file, text)
    else:
        file.write_text(text)
    assert is_let_in(access, ALICE)
    now.now_s += 1
    assert [is_let_in(access, token) for token in (ALICE, BOB)] == [False, True]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_file_that_everybody_can_read_is_warned_of(file, mode, caplog):
    caplog.set_level(logging.WARNING)
    file.chmod(mode)
    Access(file)
    assert [str(file) in said for said in caplog.messages] == ([True] if mode & 0o4 else [])


GOOD = f'sha256 = "{digest(ALICE)}"'
BROKEN = [
    ("", "has no key in it"),
    ("keys = 3", "has no key in it"),
    ("[keys", "is not TOML"),
    (f"[key.alice]\n{GOOD}", "keys.toml has 'key', but all there may be is"),
    (f"x = 1\n[keys.alice]\n{GOOD}", "keys.toml has 'x'"),
    ("[keys]\nalice = 'x'", "has the key 'alice' as a value"),
    (f"[keys.'a b']\n{GOOD}", "name is 'a b', but must be 1 to 64"),
    (f"[keys.{'a' * 65}]\n{GOOD}", "but must be 1 to 64"),
    (f"[keys.alice]\n{GOOD}\nburst = 3", r"\[keys.alice\] of keys.toml has 'burst', but known are"),
    (f"[keys.alice]\n{GOOD}\nmax_concurrent = 0", "max_concurrent is 0, but must be a whole"),
    *(
        (f"[keys.alice]\n{GOOD}\ntokens_per_minute = {wrong}", "tokens_per_minute is ")
        for wrong in ("'9'", "-1", "1.5", "true")
    ),
    (f"[keys.alice]\n{GOOD}\nexpires = '2027-01-31'", "expires in .* is '2027-01-31', but must"),
    (f"[keys.alice]\n{GOOD}\nexpires = 2027-01-31T00:00:00Z", "expires in "),
    ("[keys.alice]", "sha256 in .* is no text"),
    (f"[keys.alice]\nsha256 = '{ALICE}'", r"sha256 in \[keys.alice\] of keys.toml is a text of 16"),
    (f"[keys.alice]\n{GOOD}\n[keys.bob]\n{GOOD}", "has one sha256 for the keys 'alice' and 'bob'"),
]


@pytest.mark.parametrize(("text", "reason"), BROKEN)
def test_a_file_that_is_not_understood_is_refused_in_a_sentence_without_secrets(text, reason):
    with pytest.raises(InvalidRequest, match=reason) as refused:
        parse_keys(text, "keys.toml")
    assert "keys.toml" in str(refused.value)
    assert ALICE not in str(refused.value)
    assert digest(ALICE) not in str(refused.value)


def test_the_example_of_the_page_is_a_file_that_is_understood():
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    (example,) = re.findall(r"^```toml\n(\[keys.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (entry,) = parse_keys(example, "keys.toml")
    assert entry.limits == QuotaLimits(60, 100_000, 8)
    assert entry.expires == date(2027, 1, 31)

"""Laws of `slipstream keys`: a token is said once, a file keeps what it had, and nobody is lost."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import pytest

from slipstream.cli.keys import add_key
from slipstream.cli.main import exit_code
from slipstream.state.access import Access, Entry, read_keys
from slipstream.state.quotas import QuotaLimits
from support.network.key_files import digest

WRITTEN = f"""# Who may come in.

[keys.alice]  # until the summer
sha256 = "{digest("a")}"
max_concurrent = 2

# Bob pays.
[keys.bob]
sha256 = "{digest("b")}"
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.toml"


@pytest.fixture
def keys(file, capsys):
    """Run a command on the file; its exit code and what it said."""

    def run(*words):
        code = exit_code(["keys", *words, "--file", str(file)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_new_key_is_printed_as_a_token_that_opens_and_the_file_holds_its_digest(file, keys):
    limits = ("--requests-per-minute", "60", "--tokens-per-minute", "9000", "--max-concurrent", "8")
    code, token, error = keys("new", "alice", *limits, "--expires", "2099-01-31")
    assert (code, error) == (0, "")
    token = token.removesuffix("\n")
    assert re.fullmatch(r"slip_[A-Za-z0-9_-]{43}", token)
    assert read_keys(file) == (
        Entry("alice", digest(token), QuotaLimits(60, 9000, 8), date(2099, 1, 31)),
    )
    assert token not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert Access(file).check((("authorization", f"Bearer {token}"),)).name == "alice"
    assert keys("new", "bob")[1].strip() != token
    assert [entry.name for entry in read_keys(file)] == ["alice", "bob"]
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["new", "a b"], "the key's name is 'a b'"),
        (["new", "x", "--max-concurrent", "0"], "max_concurrent is 0"),
        (["new", "x", "--expires", "soon"], "'soon' does not match the format"),
    ],
)
def test_what_makes_no_sense_writes_nothing(file, keys, words, reason):
    code, out, error = keys(*words)
    assert (code, out) == (2, "")
    assert reason in error
    assert not file.exists()


def test_what_is_written_beside_the_keys_stays(file, keys):
    file.write_text(WRITTEN)
    file.chmod(0o640)
    assert keys("new", "carol")[0] == 0
    assert file.read_text().startswith(WRITTEN + "\n[keys.carol]\n")
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("words", "text", "reason"),
    [
        (["new", "alice"], WRITTEN, "has a key 'alice' already; take it out first"),
        (["new", "bob"], f'keys = {{ alice = {{ sha256 = "{digest("a")}" }} }}', "is not TOML"),
        (["new", "bob"], "[keys.alice]\nsha256 = 'x'\n", "sha256 in [keys.alice]"),
    ],
)
def test_a_file_that_can_not_be_changed_as_asked_is_left_as_it_was(file, keys, words, text, reason):
    file.write_text(text)
    code, out, error = keys(*words)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert reason in error
    assert file.read_text() == text


def test_keys_that_are_added_at_once_are_all_there(file):
    names = [f"key-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        entries = [Entry(name, digest(name)) for name in names]
        list(pool.map(lambda entry: add_key(file, entry), entries))
    assert sorted(entry.name for entry in read_keys(file)) == names


def test_a_link_to_the_file_stays_a_link(tmp_path, file, keys):
    (tmp_path / "real.toml").write_text(WRITTEN)
    file.symlink_to("real.toml")
    assert keys("new", "carol")[0] == 0
    assert file.is_symlink()
    assert len(read_keys(tmp_path / "real.toml")) == 3

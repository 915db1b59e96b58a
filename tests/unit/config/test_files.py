"""What stands at a path is read within bounds of time and memory, or refused in one sentence."""

import logging
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from slipstream.bench.questions import read_questions
from slipstream.cli.options import FormFlags
from slipstream.config import load_config
from slipstream.core.errors import InvalidRequest, SlipstreamError, TrainingError
from slipstream.drafting.profile_file import ModelPair, read_profile
from slipstream.files import MAX_BYTES, read_secret, read_token
from slipstream.ngrams.store_file import NgramStores
from slipstream.rpc.security import read_authority, read_pair
from slipstream.state.access import read_keys
from slipstream.state.options import StoreOptions
from slipstream.telemetry.config import TelemetryConfig
from slipstream.telemetry.traces import read_spans
from slipstream.train.data import ReadLimits, read_data
from slipstream_gateway.config import HttpConfig

READERS = {
    "a configuration": lambda path: load_config(TelemetryConfig, section="telemetry", file=path),
    "API keys": read_keys,
    "a certificate": lambda path: read_pair(path, path),
    "an authority": read_authority,
    "a profile": lambda path: read_profile(path, ModelPair("a", "b")),
    "a token": read_token,
    "the front's token": lambda path: HttpConfig(token_file=path).token(),
    "a password": lambda path: StoreOptions("redis://a", password_file=path),
    "a schema": lambda path: FormFlags(json_schema=str(path)).given(),
    "prompts": read_questions,
    "n-grams": lambda path: NgramStores([str(path)]),
    "training data": lambda path: read_data(path, ReadLimits(9), encode=lambda prompt: [1]),
}


def linked_pipe(path):
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe"))


PLACES = {
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a pipe": linked_pipe,
    "a link to a device without an end": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "nothing": lambda path: None,
    "bytes that are no text": lambda path: path.write_bytes(b"\xff\xfe\x00\xd8" * 9),
}


def refused(read, path):
    with pytest.raises((InvalidRequest, TrainingError, SlipstreamError)) as caught:
        read(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(reader, place, tmp_path):
    path = tmp_path / "file"
    PLACES[place](path)
    refused(READERS[reader], path)


@pytest.mark.parametrize(
    "name", ["a\0b", "x" * 5000, "\ud800", "/proc/self/mem", "~no-such-user/x"]
)
@pytest.mark.parametrize("reader", READERS)
def test_names_that_no_file_has_are_refused(reader, name):
    refused(READERS[reader], Path(name))


@pytest.mark.parametrize("reader", sorted(READERS.keys() - {"training data", "n-grams"}))
def test_a_gigabyte_is_refused_in_bounded_memory(reader, tmp_path):
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 1 << 30)
    tracemalloc.start()
    try:
        refused(READERS[reader], path)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_BYTES
    finally:
        tracemalloc.stop()


def test_traces_behind_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "router.jsonl")
    refused(read_spans, tmp_path)


def test_a_secret_comes_from_a_pipe_and_one_that_all_users_can_read_is_reported(tmp_path, caplog):
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    write = [sys.executable, "-c", f"open({str(path)!r}, 'w').write('s3cret')"]
    with subprocess.Popen(write), path.open("rb", buffering=0):  # which is open when it is read
        assert read_secret(path) == "s3cret"
    with caplog.at_level(logging.WARNING, "slipstream.files"):
        file = tmp_path / "token"
        file.write_text("s3cret")
        file.chmod(0o640)
        assert read_secret(file) == "s3cret" and not caplog.messages
        file.chmod(0o644)
        assert read_secret(file) == "s3cret"
    assert "can read" in caplog.text and "s3cret" not in caplog.text


def test_a_secret_of_another_type_is_not_repeated(tmp_path):
    path = tmp_path / "slipstream.toml"
    path.write_text("[router]\nstore_password = 1234567\n")
    from slipstream_router.config import RouterConfig

    with pytest.raises(InvalidRequest, match="store_password in") as caught:
        load_config(RouterConfig, section="router", file=path, env={})
    assert "1234567" not in str(caught.value)


def test_a_message_is_one_line_whatever_it_quotes():
    error = InvalidRequest("it is \nFORGED\x1b[2J \ud800 " + "x" * 10_000)
    assert str(error).isprintable() and len(str(error)) < 4100

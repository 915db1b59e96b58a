"""`slipstream bench kv` with small snapshots: figures on the terminal and in a file."""

import json

import pytest

from processes import ROOT
from slipstream.cli.main import exit_code


def test_streams_and_rounds_are_measured_alone_and_together(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".dev"))
    file = tmp_path / "kv.json"
    shape = ["--layers", "1", "--positions", "256", "--seconds", "0.3", "--encoding", "int8"]
    assert exit_code(["bench", "kv", *shape, "--json", str(file)]) == 0
    said = capsys.readouterr().out
    assert "snapshots of 1.0 MB" in said
    assert "beside the stream" in said
    measured = json.loads(file.read_text())["kv"]
    for part in ("stream_alone", "stream_beside"):
        share = measured[part]["payload_bytes"] / measured[part]["cache_bytes"]
        assert share == (128 + 4) / (2 * 128)  # bytes and a scale for the 128 halves of a head
    for part in ("rounds_alone", "rounds_beside"):
        assert measured[part]["num_rounds"] > 0


BAD = [
    (["--seconds", "0"], "seconds is 0"),
    (["--layers", "0"], "layers is 0"),
    (["--positions", "-1"], "positions is -1"),
    (["--encoding", "int4"], "--encoding"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD)
def test_nonsense_is_refused(flags, reason, capsys):
    assert exit_code(["bench", "kv", *flags]) == 2
    assert reason in capsys.readouterr().err

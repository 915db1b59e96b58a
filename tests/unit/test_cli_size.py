"""`slipstream size` and `slipstream simulate`: what they take, and what they print."""

import json

import pytest

from slipstream.cli.main import exit_code
from slipstream.cli.size_flags import RoundFlags, counts
from slipstream.core.errors import InvalidRequest
from slipstream.sizing.recording import read_recording


def printed(capsys, *args):
    assert exit_code(args) == 0
    return capsys.readouterr().out


def test_size_says_how_many_drafts_are_needed(capsys):
    values = json.loads(printed(capsys, "size", "--sessions", "16", "--json"))
    assert values["drafts_needed"] == values["pools"]["drafts"] >= 1
    assert values["tokens_per_s"] <= values["bound_tokens_per_s"]
    assert "drafts needed" in printed(capsys, "size", "--sessions", "16")


def test_drafts_that_suffer_from_company_are_needed_in_greater_number(capsys):
    args = ("size", "--sessions", "16", "--draft-ms", "4", "--json", "--draft-row-ms")
    cheap, dear = (json.loads(printed(capsys, *args, text)) for text in ("0.1", "10"))
    assert cheap["drafts_needed"] < dear["drafts_needed"]


def test_the_table_has_a_cell_for_every_cost_and_acceptance(capsys):
    args = ("size", "--table", "--sessions", "8", "--targets", "2")
    values = json.loads(printed(capsys, *args, "--json"))
    places = {(cell["cost_ratio"], cell["acceptance"]) for cell in values["cells"]}
    assert len(places) == len(values["cells"]) == 30
    assert "drafts per target" in printed(capsys, *args)


def test_rounds_that_were_saved_are_read_again(capsys, tmp_path):
    path = tmp_path / "rounds.jsonl"
    first = printed(capsys, "size", "--depth", "3", "--save", str(path), "--json")
    again = printed(capsys, "size", "--recording", str(path), "--json")
    assert first == again
    assert read_recording(path).work().depth <= 3


def test_what_is_told_takes_the_place_of_what_was_recorded(capsys, tmp_path):
    path = tmp_path / "rounds.jsonl"
    printed(capsys, "size", "--save", str(path))
    devices = RoundFlags(recording=path, draft_ms=7.0, verify_ms=50.0).rounds().devices
    assert devices.level_s == 0.007
    assert devices.curve().seconds(1) == 0.05


MEASURED = {
    "breakeven": {
        "devices": {"verify": [[1, 0.02], [64, 0.05]], "level_s": 0.001, "wire_s": 0.0005},
        "draft": {"acceptance": 0.6, "depth": 3},
    }
}


def test_what_was_measured_takes_the_place_of_what_is_assumed(tmp_path):
    path = tmp_path / "breakeven.json"
    path.write_text(json.dumps(MEASURED))
    found = RoundFlags(measured=path).rounds()
    assert found.devices.curve().seconds(1) == 0.02
    assert (found.devices.level_s, found.devices.wire_s) == (0.001, 0.0005)
    assert max(at.depth for request in found.requests for at in request.rounds) == 3
    told = RoundFlags(measured=path, draft_ms=7.0, depth=5).rounds()
    assert told.devices.level_s == 0.007
    assert max(at.depth for request in told.requests for at in request.rounds) == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"breakeven": {"devices": {}, "draft": {"acceptance": 0.5, "depth": 4}}}',
        json.dumps(MEASURED).replace("0.6", "1.6"),
        json.dumps(MEASURED).replace("0.02", "-1"),
        json.dumps(MEASURED).replace("wire_s", "unknown"),
        json.dumps(MEASURED).replace("0.6", "null"),
    ],
)
def test_a_file_that_nothing_was_measured_into_is_refused_in_a_sentence(tmp_path, capsys, text):
    path = tmp_path / "breakeven.json"
    path.write_text(text)
    assert exit_code(("size", "--measured", str(path))) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and len(said.strip().splitlines()) == 1
    assert "breakeven.json is not what `slipstream bench breakeven --json` writes" in said


def test_simulate_plays_every_number_of_drafts_and_finds_the_knee(capsys):
    args = ("simulate", "--drafts", "0-2", "--sessions", "4", "--output-tokens", "16")
    values = json.loads(printed(capsys, *args, "--json"))
    assert [run["fleet"]["drafts"] for run in values["runs"]] == [0, 1, 2]
    most = max(run["tokens_per_s"] for run in values["runs"])
    rates = {run["fleet"]["drafts"]: run["tokens_per_s"] for run in values["runs"]}
    assert rates[values["knee"]] >= 0.95 * most
    assert "knee: " in printed(capsys, *args)


def test_users_may_come_at_a_rate(capsys):
    args = ("simulate", "--drafts", "1", "--rate", "5", "--output-tokens", "8", "--json")
    [run] = json.loads(printed(capsys, *args))["runs"]
    assert run["counts"]["requests"] == 50


@pytest.mark.parametrize(
    "args",
    [
        ("size", "--acceptance", "1.5"),
        ("size", "--depth", "0"),
        ("size", "--traces", "x", "--recording", "y"),
        ("size", "--recording", "/no/such/file"),
        ("size", "--measured", "/no/such/file"),
        ("size", "--measured", "x", "--recording", "y"),
        ("simulate", "--drafts", "many"),
        ("simulate", "--drafts", "2-1"),
        ("simulate", "--targets", "0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(capsys, args):
    assert exit_code(args) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_recorded_rounds_are_not_imagined_as_well(tmp_path, capsys):
    path = tmp_path / "rounds.jsonl"
    printed(capsys, "size", "--save", str(path))
    with pytest.raises(InvalidRequest, match="--acceptance can't be told"):
        RoundFlags(recording=path, acceptance=0.5).rounds()


def test_numbers_are_told_one_by_one_or_from_one_to_another():
    assert counts("1,2,4", "drafts") == (1, 2, 4)
    assert counts("3,0-2", "drafts") == (0, 1, 2, 3)

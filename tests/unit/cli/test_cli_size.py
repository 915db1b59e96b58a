"""`slipstream size`: what it takes, and what it prints."""

import json

import pytest

from slipstream.cli.main import exit_code


def printed(capsys, *args):
    assert exit_code(("size", *args)) == 0
    return capsys.readouterr().out


def test_size_prints_how_many_drafts_are_needed(capsys):
    values = json.loads(printed(capsys, "--sessions", "16", "--json"))
    assert values["drafts_needed"] == values["pools"]["drafts"] >= 1
    assert values["gain"] == values["tokens_per_s"] / values["plain_tokens_per_s"]
    assert f"drafts needed   {values['drafts_needed']} for" in printed(capsys, "--sessions", "16")


def test_drafts_that_suffer_from_company_are_needed_in_greater_number(capsys):
    args = ("--sessions", "16", "--draft-ms", "4", "--json", "--draft-row-ms")
    cheap, dear = (json.loads(printed(capsys, *args, text)) for text in ("0.1", "10"))
    assert cheap["drafts_needed"] < dear["drafts_needed"]


@pytest.mark.parametrize(
    "args",
    [
        ("--acceptance", "1.5"),
        ("--depth", "0"),
        ("--drafts", "-1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(capsys, args):
    assert exit_code(("size", *args)) == 2
    assert capsys.readouterr().err.startswith("error: ")

"""Texts follow their grammar wherever they are written: in one process, behind a router, moved."""

import json

import pytest
import torch

from slipstream.cli.main import exit_code
from slipstream.client import Client, Mode, SamplingParams, SpeculationOptions
from support.models.tiny_checkpoint import tiny_llama
from support.network.streams import busy, read, tokens_of
from support.services.fleet import routed, running

FORCED = SpeculationOptions(mode=Mode.FORCED, max_draft_tokens=6)
OFF = SpeculationOptions(mode=Mode.OFF)
SAMPLED = SamplingParams(temperature=0.9, seed=11)
COLOUR = {"enum": ["red", "green", "blue"]}
COLOURS = {"type": "array", "items": COLOUR, "minItems": 4, "maxItems": 8}
FIELDS = {"colours": COLOURS, "name": {"type": "string", "maxLength": 12}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS]}
SCHEMA |= {"additionalProperties": False}
REGEX = "(the (red|green|blue) (car|house), ){5,9}and so on"
ASKED = {"max_tokens": 400, "sampling": SAMPLED}


@pytest.fixture(scope="module")
def plain(folder):
    with Client.embedded(str(folder), "none", dtype="float32") as client:
        return {
            "json": client.generate("hello", json_schema=SCHEMA, **ASKED),
            "regex": client.generate("hello", regex=REGEX, **ASKED),
        }


async def test_a_text_that_moves_to_another_target_goes_on_with_its_grammar(targets, draft, plain):
    async with running(*targets, draft), routed(targets, [draft]) as client:
        stream = client.stream("hello", regex=REGEX, **ASKED, speculation=FORCED)
        chunks = await read(stream, 10)
        await (await busy(targets)).stop()
        chunks += await read(stream)
        assert tokens_of(chunks) == plain["regex"].token_ids
        stats = chunks[-1].stats
        assert stats.continuity.num_target_losses == 1
        assert stats.speculation.stop_reasons["grammar"] > 0  # forced tokens save rounds
        assert stats.speculation.num_accepted_lookup_tokens > len(tokens_of(chunks)) / 4
        result = await client.generate("hello", json_schema=SCHEMA, **ASKED)
        assert result.token_ids == plain["json"].token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probabilities_do_not_know_of_grammars(folder, temperature):
    sampling = SamplingParams(temperature=temperature, seed=3)
    asked = {"max_tokens": 24, "sampling": sampling, "regex": "[ab]{6}, that is all, [0-9]{4}"}
    with Client.embedded(str(folder), f"vanilla:{folder}", dtype="float32") as client:
        plain, forced = (
            client.generate("hello", **asked, logprobs=3, speculation=how) for how in (OFF, FORCED)
        )
        prompt = client.tokenize("hello")
    assert (forced.token_ids, forced.logprobs) == (plain.token_ids, plain.logprobs)
    assert forced.stats.speculation.num_accepted_draft_tokens > 0
    with torch.no_grad():
        logits = tiny_llama().eval()(torch.tensor([[*prompt, *plain.token_ids]])).logits[0]
    laws = torch.log_softmax(logits.double()[len(prompt) - 1 : -1], -1)
    for law, token, item in zip(laws, plain.token_ids, plain.logprobs, strict=True):
        assert item.logprob == pytest.approx(float(law[token]), abs=1e-5)
        assert item.top[0].logprob == pytest.approx(float(law.max()), abs=1e-5)
    assert any(item.top[0].text != item.text for item in plain.logprobs)


def test_the_command_takes_a_schema_as_a_file_or_as_it_is(folder, tmp_path, capsys):
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')
    model = ["--target", str(folder), "--draft", "none", "--dtype", "float32", "--quiet"]
    for given in (str(schema), schema.read_text()):
        assert exit_code(["generate", "hello", *model, "--json-schema", given]) == 0
        assert json.loads(capsys.readouterr().out) in ("yes", "no")
    assert exit_code(["generate", "hello", *model, "--regex", "x{3}"]) == 0
    assert capsys.readouterr().out.strip() == "xxx"
    assert exit_code(["generate", "hello", *model, "--regex", "x", "--json-schema", "{}"]) == 2
    assert "one can be followed" in capsys.readouterr().err
    assert exit_code(["generate", "hello", *model, "--json-schema", str(tmp_path / "none")]) == 2
    assert "can't be read" in capsys.readouterr().err

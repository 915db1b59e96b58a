"""Whole runs that write training data: what they hold, how they go on, what they refuse.

The target is a chain: whatever was said, "i" follows "h". So its words are known beforehand.
"""

import gzip
import json
from itertools import pairwise
from random import Random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.cli.main import exit_code
from slipstream.core.errors import InvalidRequest, TrainingError
from slipstream.models.native.library import has_kernels
from slipstream.train.answers import BulkTarget, Talk
from slipstream.train.data import ReadLimits, finished_shards, read_data, read_lines
from slipstream.train.data_run import DataRun, make_plan, make_shards, write_data
from support.commands import refusal
from support.models import tiny
from support.models.tiny_checkpoint import byte_tokenizer, save_model, tiny_llama

END, USER, BOT = 0, 1, 2
ANSWER = "klmno"
SIZES = {"temperatures": "0,1:1", "max_new_tokens": 12, "batch": 2, "max_prompt_tokens": 80}
LINES = [
    {"prompt": "Hello"},
    {"turns": ["One", "Two", "Three"]},
    {"p": [30, 31, 32], "g": [9]},
    {"prompt": "Why?"},
    {"prompt": "x" * 90},
]


def chain() -> LlamaForCausalLM:
    """A Llama whose next token follows from the last one; what no rule names goes on at random."""
    letters = byte_tokenizer().get_vocab()
    torch.manual_seed(0)
    sizes = {**tiny_llama().config.to_dict(), "hidden_size": 64, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, "head_dim": 16}))
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for token, follower in pairwise([BOT, *map(letters.get, ANSWER), END]):
            model.lm_head.weight[follower] += 2 * model.model.embed_tokens.weight[token]
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a target and a file of prompts."""
    base = tmp_path_factory.mktemp("data")
    save_model(base / "target", chain())
    save_model(base / "other/target", tiny_llama())
    (base / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return base


def data_run(place, out, model="target", **changes):
    values = {"target": str(place / model), "prompts": (place / "in.jsonl",), "out": out}
    return DataRun(**{**values, **SIZES, **changes})


def write(run, reports=None):
    """The finished shards, and all; the clock goes a second with every look."""
    ticks, plan = iter(range(1000)), make_plan(run)
    reports = [] if reports is None else reports
    tell = lambda *report: reports.append(report)  # noqa: E731
    return write_data(run, plan, clock=lambda: next(ticks), report=tell), len(plan.shards)


def shards(out):
    return {path.name: path.read_bytes() for path in finished_shards(out)}


def documents(out):
    lines = [line for path in finished_shards(out) for line in read_lines(path)[1]]
    return [json.loads(line) for line in lines if line]


def text(ids):
    return byte_tokenizer().decode(ids, skip_special_tokens=False)


def test_every_prompt_gets_the_targets_own_answer_turn_by_turn(place, tmp_path):
    reports = []
    assert write(data_run(place, tmp_path), reports) == (3, 3)
    found = documents(tmp_path)
    answered = {text(line["p"]): text(line["g"]) for line in found if line["p"][0] == USER}
    reply = f"<|bot|>{ANSWER}<|end|>\n<|user|>"
    first, second, third = (f"{word}<|end|>\n" for word in ("One", "Two", "Three"))
    prompts = [
        "Hello<|end|>\n",
        "Why?<|end|>\n",
        first,
        first + reply + second,
        first + reply + second + reply + third,
    ]
    assert answered == {f"<|user|>{prompt}<|bot|>": f"{ANSWER}<|end|>" for prompt in prompts}
    assert {line["t"] for line in found} <= {0.0, 1.0}
    assert (len(found), reports[-1][1]) == (6, sum(len(line["g"]) for line in found))


@pytest.mark.skipif(not has_kernels(), reason="8 bits need native kernels")
def test_a_target_in_8_bits_writes_the_answers_it_is_sure_of(place, tmp_path):
    exact, coded = (tmp_path / dtype for dtype in ("float32", "q8"))
    for out in (exact, coded):
        write(data_run(place, out, dtype=out.name, batch=8))
    assert shards(coded) == shards(exact)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_depends_on_its_own_prompt_and_seed_only(temperature):
    sizes, engine = (3, 70, 1, 24), tiny.local_target(tiny.causal())
    talks = [Talk(tuple(tiny.tokens(size, seed=size)), (), temperature) for size in sizes]
    # Steps take fewer tokens than prompts have; texts cross borders of the cache's blocks.
    bulk = BulkTarget(engine, frozenset(), 45, max_rows=16)
    whole, alone, other = (
        bulk.answers(some, Random(seed)) for some, seed in ((talks, 0), (talks[:1], 0), (talks, 1))
    )
    assert alone == whole[:1]
    assert (other == whole) == (temperature == 0)


def interrupted(run):
    """Write one shard."""

    def stop(*report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_data(run, make_plan(run), clock=lambda: 0.0, report=stop)


def test_an_interrupted_run_ends_with_the_shards_of_an_unbroken_one(place, tmp_path):
    write(data_run(place, tmp_path / "whole"))
    broken = data_run(place, tmp_path / "broken")
    interrupted(broken)
    assert len(shards(tmp_path / "broken")) == 1
    assert write(broken) == (3, 3)
    assert shards(tmp_path / "broken") == shards(tmp_path / "whole")


@pytest.mark.parametrize("changes", [{"seed": 5}, {"dtype": "float32"}, {"model": "other/target"}])
def test_a_directory_of_another_run_or_of_none_is_refused(place, tmp_path, changes):
    interrupted(data_run(place, tmp_path))
    with pytest.raises(TrainingError, match="holds shards of other settings"):
        write(data_run(place, tmp_path, **changes))
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(TrainingError, match="holds shards of other settings"):
        write(data_run(place, tmp_path))


def test_more_than_the_targets_context_is_refused(place, tmp_path):
    with pytest.raises(InvalidRequest, match="140 tokens together, but the context of target"):
        write(data_run(place, tmp_path, max_new_tokens=60))


def test_a_directory_of_shards_is_read_as_one_file(tmp_path):
    def shard(number, *lines):
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        (tmp_path / f"shard-{number:06d}.jsonl.gz").write_bytes(gzip.compress(content))

    limits = ReadLimits(vocab_size=50, max_tokens=3)
    with pytest.raises(TrainingError, match="holds no finished shard"):
        read_data(tmp_path, limits, encode=list)
    shard(10, {"p": [4], "g": [5]}, {"p": [1] * 4, "g": []})
    shard(2, {"p": [1, 2], "g": [3], "t": 1.0})
    data = read_data(tmp_path, limits, encode=list)
    assert [document.ids.tolist() for document in data.documents] == [[1, 2, 3], [4, 5]]
    assert (data.num_skipped, data.num_generated) == (1, 2)


def plan_of(place, path, *lines):
    content = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return make_plan(data_run(place, path.parent, prompts=(path,)))


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_all_kinds_of_lines_open_conversations(place, tmp_path, name):
    lines = [{"prompt": "a\u2028b"}, {"turns": ["c", "d", "e"]}, {"p": [7, 8]}, {"p": [5] * 99}]
    plan = plan_of(place, tmp_path / name, *lines)
    talks = [talk for shard in plan.shards for talk in shard]
    assert sorted(talk.turns for talk in talks) == [(), (), ("d", "e")]
    assert (7, 8) in [talk.prompt for talk in talks]
    assert plan.num_skipped == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"turns": []}', 'line 1 has no "prompt"'),
        ('{"prompt": 3}', 'line 1 has no "prompt"'),
        ('{"prompt": " "}', "line 1 can't be used: the prompt is empty"),
        ('{"p": [1, 999]}', "line 1 can't be used: the prompt has token id 999"),
        ("", "no prompt to answer"),
    ],
)
def test_input_that_is_none_is_named(place, tmp_path, line, reason):
    with pytest.raises(TrainingError, match=reason):
        plan_of(place, tmp_path / "a.jsonl", line)


def test_a_shard_has_as_many_turns_each_and_no_more_memory_than_common_prompts(place, tmp_path):
    run = data_run(place, tmp_path, batch=8, max_new_tokens=40)
    talks = [Talk((5,) * n, ("x",) * (n % 3)) for n in range(1, 480, 7)]
    for shard in make_shards(talks, run):
        assert len({len(talk.turns) for talk in shard}) == 1
        assert len(shard) <= 8
        assert len(shard) * (max(len(talk.prompt) for talk in shard) + 40) <= 8 * 240


def words(place, out, *more):
    base = ["train", "data", "--target", str(place / "target"), "--out", str(out)]
    return [*base, "--max-new-tokens", "12", "--max-prompt-tokens", "80", *more]


def test_the_command_says_what_it_reads_and_how_far_it_is(place, tmp_path, capsys):
    files = ["--prompts", str(place / "in.jsonl"), "--prompts", str(place / "in.jsonl")]
    options = ["--batch", "4", "--temperatures", "0,1:1", "--threads", "1"]
    assert exit_code(words(place, tmp_path / "out", *files, *options)) == 0
    first, *steps, last = capsys.readouterr().out.splitlines()
    assert first == "8 conversations in 3 shards; too long, left out: 2"
    assert [step.split(":")[0] for step in steps] == [f"shard {n} of 3" for n in range(1, 4)]
    assert all("tokens/s" in step for step in steps)
    assert last.endswith("out: 3 of 3 shards finished")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--prompts", "missing.pdf"], "missing.pdf is none of"),
        (["--temperatures", "0;1"], "temperatures must be numbers"),
        (["--temperatures", "-1"], "the temperature is -1.0"),
    ],
)
def test_a_bad_option_is_one_sentence_and_exit_code_2(place, tmp_path, capsys, options, reason):
    prompts = [] if "--prompts" in options else ["--prompts", str(place / "in.jsonl")]
    assert reason in refusal(capsys, *words(place, tmp_path / "out", *prompts, *options))


def test_temperatures_come_as_often_as_their_weights(place, tmp_path):
    run = data_run(place, tmp_path, temperatures="0:3,0.7")
    talks = [talk for shard in make_shards([Talk((5,) * 5)] * 2000, run) for talk in shard]
    assert {talk.temperature for talk in talks} == {0.0, 0.7}
    assert sum(talk.temperature == 0 for talk in talks) == pytest.approx(1500, abs=100)

"""Whole runs that write training data: what they hold, how they go on, what they refuse.

The target is a chain: whatever was said, "i" follows "h". So its words are known beforehand.
"""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.cli.main import exit_code
from slipstream.core.errors import InvalidRequest, TrainingError
from slipstream.models.native.library import has_kernels
from slipstream.train.data import finished_shards, read_lines
from slipstream.train.data_run import DataHooks, DataRun, write_data
from slipstream.train.shards import DataSettings, ShardStore
from slipstream.train.sources import SourceSettings
from support.models.tiny_checkpoint import byte_tokenizer, tiny_llama

END, USER, BOT = 0, 1, 2
SELF_PROMPT, ANSWER = "abcdefghij", "klmno"
SETTINGS = DataSettings(
    temperatures=((0.0, 1.0), (1.0, 1.0)),
    max_new_tokens=12,
    batch=2,
    sources=SourceSettings(max_prompt_tokens=80, passage_tokens=10),
)
LINES = [
    {"prompt": "Hello"},
    {"turns": ["One", "Two", "Three"]},
    {"p": [30, 31, 32]},
    {"prompt": "Why?"},
    {"prompt": "x" * 90},
]


def chain() -> LlamaForCausalLM:
    """A Llama whose next token follows from the last one; what no rule names goes on at random."""
    letters = byte_tokenizer().get_vocab()
    texts = [[USER, *map(letters.get, SELF_PROMPT), END], [BOT, *map(letters.get, ANSWER), END]]
    torch.manual_seed(0)
    sizes = {**tiny_llama().config.to_dict(), "hidden_size": 64, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, "head_dim": 16}))
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for text in texts:
            for token, follower in pairwise(text):
                model.lm_head.weight[follower] += 2 * model.model.embed_tokens.weight[token]
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a target and a file of prompts."""
    base = tmp_path_factory.mktemp("data")
    chain().save_pretrained(base / "target")
    byte_tokenizer().save_pretrained(base / "target")
    (base / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (base / "in.txt").write_text("Text that nobody generated.")
    return base


def data_run(place, out, files=("in.jsonl",), settings=SETTINGS, **changes):
    paths = tuple(place / name for name in files)
    return DataRun(str(place / "target"), paths, out, settings, **changes)


def write(run, reports=None, **options):
    """The outcome; the clock goes a second with every look."""
    ticks = iter(range(1000))
    tell = reports.append if reports is not None else lambda report: None
    return write_data(run, DataHooks(lambda: next(ticks), lambda plan: None, tell), **options)


def shards(out):
    return {path.name: path.read_bytes() for path in finished_shards(out)}


def documents(out):
    lines = [line for path in finished_shards(out) for line in read_lines(path)[1]]
    return [json.loads(line) for line in lines if line]


def text(ids):
    return byte_tokenizer().decode(ids, skip_special_tokens=False)


def test_every_prompt_gets_the_targets_own_answer_turn_by_turn(place, tmp_path):
    reports = []
    outcome = write(data_run(place, tmp_path), reports)
    assert (outcome.num_done, outcome.num_shards, outcome.num_taken) == (3, 3, 0)
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
    assert len(found) == 6
    assert reports[-1].num_tokens == sum(len(line["g"]) for line in found)
    assert reports[-1].seconds_left == 0


def test_the_target_writes_prompts_and_answers_each_once(place, tmp_path):
    settings = replace(SETTINGS, num_self_prompts=3)
    write(data_run(place, tmp_path, files=(), settings=settings))
    prompt = f"<|user|>{SELF_PROMPT}<|end|>\n<|bot|>"
    found = [(text(line["p"]), text(line["g"])) for line in documents(tmp_path)]
    assert found == [(prompt, f"{ANSWER}<|end|>")] * 2, "one in each of two shards"


@pytest.mark.skipif(not has_kernels(), reason="8 bits need native kernels")
def test_a_target_in_8_bits_writes_the_answers_it_is_sure_of(place, tmp_path):
    exact, coded = (tmp_path / dtype for dtype in ("float32", "q8"))
    for out in (exact, coded):
        write(data_run(place, out, dtype=out.name, settings=replace(SETTINGS, batch=8)))
    assert shards(coded) == shards(exact)


def test_text_is_continued_or_taken_as_it_is(place, tmp_path):
    whole = (place / "in.txt").read_text()
    for as_is in (False, True):
        out = tmp_path / str(as_is)
        sources = replace(SETTINGS.sources, is_text_as_is=as_is)
        write(data_run(place, out, ("in.txt",), replace(SETTINGS, sources=sources)))
        found = documents(out)
        assert sorted(map(len, (line["p"] for line in found))) == [7, 10, 10]
        assert {text(line["p"]) for line in found} == {whole[:10], whole[10:20], whole[20:]}
        assert all(bool(line["g"]) != as_is for line in found)


def test_an_interrupted_run_ends_with_the_shards_of_an_unbroken_one(place, tmp_path):
    settings = replace(SETTINGS, num_self_prompts=2)
    write(data_run(place, tmp_path / "whole", settings=settings))
    broken = data_run(place, tmp_path / "broken", settings=settings)
    first = write(replace(broken, max_tokens=1))
    assert (first.num_done, first.num_shards, first.num_taken) == (1, 4, 0)
    assert write(replace(broken, max_tokens=1), spread=None).num_done == 1, "nothing is spread"
    assert write(broken).num_done == 4
    assert shards(tmp_path / "broken") == shards(tmp_path / "whole")


def test_a_shard_that_another_process_writes_is_left_to_it(place, tmp_path):
    run = data_run(place, tmp_path)
    write(replace(run, max_tokens=1))
    other = ShardStore(tmp_path)
    (number,) = {0, 1, 2} - other.done() - {2}
    with other.claim(number) as is_theirs:
        assert is_theirs
        outcome = write(run)
    assert (outcome.num_done, outcome.num_taken) == (2, 1)
    assert number not in other.done()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"settings": replace(SETTINGS, seed=5)}, "seed"),
        ({"settings": replace(SETTINGS, max_new_tokens=13)}, "max_new_tokens"),
        ({"files": ("in.txt",)}, "files"),
        ({"dtype": "float32"}, "dtype"),
    ],
)
def test_a_directory_of_another_run_is_refused_by_what_differs(place, tmp_path, changes, name):
    write(data_run(place, tmp_path, max_tokens=1))
    with pytest.raises(TrainingError, match=f"another run: {name} is"):
        write(data_run(place, tmp_path, **changes))


def test_weights_that_changed_are_another_target(place, tmp_path):
    write(data_run(place, tmp_path / "out", max_tokens=1))
    tiny_llama().save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    run = replace(data_run(place, tmp_path / "out"), target=str(tmp_path / "target"))
    with pytest.raises(TrainingError, match="another run: weights is"):
        write(run)


def test_more_than_the_targets_context_is_refused(place, tmp_path):
    settings = replace(SETTINGS, max_new_tokens=60)
    with pytest.raises(InvalidRequest, match="140 tokens together, but the context of target"):
        write(data_run(place, tmp_path, settings=settings))


def command(place, out, *more):
    base = ["train", "data", "--target", str(place / "target"), "--out", str(out)]
    sizes = ["--max-new-tokens", "12", "--max-prompt-tokens", "80", "--passage-tokens", "10"]
    return exit_code([*base, *sizes, *more])


def test_the_command_says_what_it_reads_and_how_far_it_is(place, tmp_path, capsys):
    files = ["--prompts", str(place / "in.jsonl"), "--prompts", str(place / "in.txt")]
    options = ["--batch", "2", "--temperatures", "0,1:1", "--self-prompts", "2", "--threads", "1"]
    assert command(place, tmp_path / "out", *files, *options) == 0
    first, *steps, last = capsys.readouterr().out.splitlines()
    assert first == "7 conversations, 2 self-prompts in 5 shards; prompts left out as too long: 1"
    assert [step.split(":")[0] for step in steps] == [f"shard {n} of 5" for n in range(1, 6)]
    assert all("tokens/s" in step and "min left" in step for step in steps)
    assert last.endswith("out: 5 of 5 shards finished")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "no prompt to answer"),
        (["--prompts", "missing.jsonl"], "missing.jsonl"),
        (["--prompts", "missing.pdf"], "missing.pdf is none of"),
        (["--self-prompts", "2", "--temperatures", "0;1"], "temperatures must be numbers"),
        (["--self-prompts", "2", "--temperatures", "1:0"], "the weight of temperature 1.0 is 0.0"),
        (["--self-prompts", "2", "--ray-workers", "2"], "--ray-workers needs --ray"),
        (["--self-prompts", "2", "--device", "tpu"], "the device is 'tpu'"),
        (["--self-prompts", "2", "--dtype", "int3"], "the dtype is 'int3'"),
        (["--self-prompts", "2", "--target", "no-such-model"], "no-such-model"),
        (["--self-prompts", "-1"], "--self-prompts"),
        (["--self-prompts", "2", "--passage-tokens", "90"], "longer than the longest prompt"),
    ],
)
def test_a_bad_option_is_one_sentence_and_exit_code_2(place, tmp_path, capsys, options, reason):
    assert command(place, tmp_path / "out", *options) == 2
    sentence = capsys.readouterr().err.strip()
    assert reason in sentence
    assert len(sentence.splitlines()) == 1

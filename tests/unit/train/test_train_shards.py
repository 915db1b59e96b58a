"""What belongs into a shard, who may write it, and what the target's own prompts must be."""

import gzip
import json
from pathlib import Path

import pytest

from slipstream.core.errors import InvalidRequest, TrainingError
from slipstream.models.tokenizer import text_tokenizer
from slipstream.train.author import usable_prompts, user_opening
from slipstream.train.data import ReadLimits, finished_shards, read_data
from slipstream.train.data_run import Tally, Written
from slipstream.train.shards import DataSettings, ShardStore, make_shards
from slipstream.train.sources import SourceSettings, Talk, TextSources, read_sources
from support.models.tiny_checkpoint import byte_tokenizer

END, USER, BOT = 0, 1, 2
MANIFEST = {"seed": 1, "files": [["a.jsonl", "12"]]}


@pytest.fixture(scope="module")
def tokenizer():
    return text_tokenizer(byte_tokenizer())


def sources(*lengths, turns=()):
    talks = tuple(Talk((5,) * length, turns) for length in lengths)
    return TextSources(talks, (), (), 0)


def write(path: Path, *lines):
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_all_kinds_of_lines_open_conversations(tmp_path, tokenizer, name):
    lines = [{"prompt": "a\u2028b"}, {"turns": ["c", "d", "e"]}, {"p": [7, 8], "g": [9]}]
    found = read_sources([write(tmp_path / name, *lines)], tokenizer, SourceSettings())
    assert [talk.turns for talk in found.talks] == [(), ("d", "e"), ()]
    assert found.talks[2].prompt == (7, 8)
    assert tokenizer.decode(found.talks[0].prompt) == "a\u2028b\n"
    assert [talk.prompt[0] for talk in found.talks[:2]] == [USER, USER]


def test_long_prompts_are_left_out_and_counted(tmp_path, tokenizer):
    path = write(tmp_path / "in.jsonl", {"p": [5] * 9}, {"p": [5] * 8})
    found = read_sources([path], tokenizer, SourceSettings(8, passage_tokens=8))
    assert (len(found.talks), found.num_skipped) == (1, 1)


def test_passages_put_together_are_the_text(tmp_path, tokenizer):
    text = "A line,\nand then \u00e4nother one.\n" * 5
    (tmp_path / "in.md").write_text(text)
    whole = tokenizer.encode(text.removesuffix("\n"), add_special_tokens=False)
    for as_is in (False, True):
        settings = SourceSettings(passage_tokens=16, is_text_as_is=as_is)
        found = read_sources([tmp_path / "in.md"], tokenizer, settings)
        parts = found.texts if as_is else [talk.prompt for talk in found.talks]
        assert [token for part in parts for token in part] == whole
        assert all(len(part) == 16 for part in parts[:-1])
        assert len(found.talks) + len(found.texts) == len(parts)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "x", "is none of .jsonl"),
        ("a.txt", " \n", "holds no text"),
        ("a.jsonl", "{", "line 1 is no JSON"),
        ("a.jsonl", '{"p": [1]}\n{"turns": []}', 'line 2 has no "prompt"'),
        ("a.jsonl", '{"turns": "abc"}', 'line 1 has no "prompt"'),
        ("a.jsonl", '{"prompt": 3}', 'line 1 has no "prompt"'),
        ("a.jsonl", '{"prompt": " "}', "line 1 can't be used: the prompt is empty"),
        ("a.jsonl", '{"p": [1, 999]}', "line 1 can't be used: the prompt has token id 999"),
        ("a.jsonl.gz", "not packed", "cannot be read"),
    ],
)
def test_input_that_is_none_is_named(tmp_path, tokenizer, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(TrainingError, match=reason):
        read_sources([tmp_path / name], tokenizer, SourceSettings())


def test_every_conversation_is_in_one_shard_as_often_as_samples_are_asked_for():
    lengths = [3, 50, 7, 480, 9, 200, 3, 12] * 5
    settings = DataSettings(batch=4, samples_per_prompt=3)
    shards = make_shards(sources(*lengths), settings)
    found = [len(job.talk.prompt) for shard in shards for job in shard.jobs]
    assert sorted(found) == sorted(lengths * 3)
    assert [shard.number for shard in shards] == list(range(len(shards)))


def test_no_batch_takes_more_memory_than_full_rows_of_common_prompts():
    settings = DataSettings(batch=8, max_new_tokens=40)
    shards = make_shards(sources(*range(1, 480, 7)), settings)
    for shard in shards:
        longest = max(len(job.talk.prompt) for job in shard.jobs)
        assert len(shard.jobs) <= 8
        assert len(shard.jobs) * (longest + 40) <= 8 * 240
    assert max(len(shard.jobs) for shard in shards) == 8


def test_conversations_of_as_many_turns_go_together():
    talks = tuple(Talk((5,) * n, ("x",) * (n % 3)) for n in range(1, 20))
    for shard in make_shards(TextSources(talks, (), (), 0), DataSettings()):
        assert len({len(job.talk.turns) for job in shard.jobs}) == 1


def test_a_plan_follows_from_its_input_and_its_seed():
    first, again, other = (
        make_shards(sources(*range(1, 60)), DataSettings(batch=4, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len({shard.seed(seed) for shard in first for seed in (1, 2)}) == 2 * len(first)


def test_temperatures_come_as_often_as_their_weights_say():
    settings = DataSettings(temperatures=((0.0, 3.0), (0.7, 1.0)))
    jobs = [job for shard in make_shards(sources(*[5] * 2000), settings) for job in shard.jobs]
    assert {job.temperature for job in jobs} == {0.0, 0.7}
    assert sum(job.temperature == 0 for job in jobs) == pytest.approx(1500, abs=100)


def test_self_prompts_and_texts_have_shards_of_their_own():
    given = TextSources((Talk((5,)),), ((5, 6),), (), 0)
    shards = make_shards(given, DataSettings(batch=4, num_self_prompts=10))
    assert sorted(shard.num_self_prompts for shard in shards) == [0, 0, 2, 4, 4]
    assert all(
        bool(shard.jobs) + bool(shard.texts) + bool(shard.num_self_prompts) == 1 for shard in shards
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataSettings(temperatures=()),
        lambda: DataSettings(temperatures=((-1.0, 1.0),)),
        lambda: DataSettings(temperatures=((1.0, 0.0),)),
        lambda: DataSettings(batch=0),
        lambda: DataSettings(num_self_prompts=-1),
        lambda: SourceSettings(max_prompt_tokens=100, passage_tokens=101),
        lambda: SourceSettings(passage_tokens=1),
        lambda: make_shards(sources(), DataSettings()),
    ],
)
def test_settings_that_make_no_data_are_refused(make):
    with pytest.raises(TrainingError):
        make()


def test_a_directory_goes_on_with_its_own_manifest_only(tmp_path):
    ShardStore(tmp_path / "out").bind(MANIFEST)
    ShardStore(tmp_path / "out").bind(MANIFEST)
    with pytest.raises(TrainingError, match="seed is 1 there and 2 here"):
        ShardStore(tmp_path / "out").bind({**MANIFEST, "seed": 2})
    with pytest.raises(TrainingError, match="more is null there and 3 here"):
        ShardStore(tmp_path / "out").bind({**MANIFEST, "more": 3})


def test_shards_of_unknown_origin_are_not_mixed_with_new_ones(tmp_path):
    ShardStore(tmp_path).write(0, [])
    with pytest.raises(TrainingError, match="holds shards but no manifest"):
        ShardStore(tmp_path).bind(MANIFEST)


def test_a_shard_is_one_processes_to_write_until_it_is_finished(tmp_path):
    first, second = ShardStore(tmp_path), ShardStore(tmp_path)
    first.bind(MANIFEST)
    with first.claim(3) as is_ours, second.claim(3) as is_theirs:
        assert (is_ours, is_theirs) == (True, False)
    with second.claim(3) as is_theirs:
        assert is_theirs, "whoever gave up holds nobody off"
        second.write(3, [{"p": [1], "g": [2, 3]}])
    with first.claim(3) as is_ours:
        assert not is_ours
    assert (first.done(), first.num_generated(3)) == ({3}, 2)
    assert not list(tmp_path.rglob("*.part"))


def test_the_same_lines_are_the_same_bytes(tmp_path):
    store = ShardStore(tmp_path)
    store.write(0, [{"p": [1], "g": [2]}])
    store.write(1, [{"p": [1], "g": [2]}])
    first, second = finished_shards(tmp_path)
    assert first.read_bytes() == second.read_bytes()


def test_a_directory_of_shards_is_read_as_one_file(tmp_path):
    store, limits = ShardStore(tmp_path / "out"), ReadLimits(vocab_size=50, max_tokens=3)
    store.bind(MANIFEST)
    with pytest.raises(TrainingError, match="holds no finished shard"):
        read_data(tmp_path / "out", limits, encode=list)
    store.write(10, [{"p": [4], "g": [5]}, {"p": [1] * 4, "g": []}])
    store.write(2, [{"p": [1, 2], "g": [3], "t": 1.0}])
    data = read_data(tmp_path / "out", limits, encode=list)
    assert [document.ids.tolist() for document in data.documents] == [[1, 2, 3], [4, 5]]
    assert (data.name, data.num_skipped, data.num_generated) == ("out", 1, 2)
    store.write(11, [{"p": [1], "g": []}])
    assert read_data(tmp_path / "out", limits, encode=list).sha256 != data.sha256


def test_a_tally_counts_everybodys_shards_and_rates_its_own(tmp_path):
    store, shards = ShardStore(tmp_path), make_shards(sources(*[5] * 8), DataSettings(batch=2))
    store.write(0, [{"p": [1], "g": [2] * 10}])
    tally = Tally(shards, store, 40)
    for number in (1, 2):  # another process writes the second
        store.write(number, [{"p": [1], "g": [2] * 10}])
    tally.update(Written(1, 10))
    report = tally.report(5.0)
    assert (report.num_done, report.num_shards, report.num_tokens) == (3, 4, 10)
    assert report.tokens_per_second == 2.0
    assert report.seconds_left == 2.5, "half of what has been done since the start"
    assert not tally.is_enough()
    store.write(3, [{"p": [1], "g": [2] * 10}])
    tally.update(None)
    assert tally.is_enough()


def test_the_user_speaks_where_the_template_puts_the_message(tokenizer):
    opening = user_opening(tokenizer, ends={9}, special={END, USER, BOT})
    assert opening.prompt == (USER,)
    assert opening.ends == {9, END}


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("", InvalidRequest),
        ("{{ messages[0]['content'] }}:", TrainingError),
        ("say {{ messages[0]['content'] }}{{ messages[0]['content'] }}", TrainingError),
        ("say {{ messages[0]['content'] }}!", TrainingError),
    ],
)
def test_templates_that_show_no_user_are_refused(template, error):
    with pytest.raises(error):
        user_opening(text_tokenizer(byte_tokenizer(template=template)), ends=set(), special={END})


def test_only_turns_that_read_like_new_text_are_usable(tokenizer):
    def said(text, *end):
        return [*tokenizer.encode(text, add_special_tokens=False), *end]

    turns = [
        said(" What is a tree?\n", END),
        said("It never ends, this"),
        said("What is a tree?", END),
        said("Short", END),
        said("12345 67890", END),
        said("A bell \a rings", END),
        [*said("Half a letter "), said("\u00e4")[0], END],
        [*said("Who speaks "), BOT, *said("now?", END)],
        [END],
        said("Caf\u00e9 au lait,\nplease", END),
    ]
    usable = usable_prompts(turns, tokenizer, ends={END}, special={END, USER, BOT})
    assert usable == ["What is a tree?", "Caf\u00e9 au lait,\nplease"]

"""The papers' comparisons: figures, judges, the page, and a run from end to end on a tiny model."""

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.bench.figures import Output, Reply
from slipstream.bench.papers.bias import differences, noise_95, total_variation
from slipstream.bench.papers.catalogue import EXPERIMENTS, chosen
from slipstream.bench.papers.experiment import Outcome
from slipstream.bench.papers.figures import arm_figures, expected_speedup
from slipstream.bench.papers.judging import faster, more, verdict_of
from slipstream.bench.papers.long import share_repeated
from slipstream.bench.papers.long_report import is_lead_kept, speedup_at
from slipstream.bench.papers.mask import WIDTHS, Growth, rebuilt, round_masks
from slipstream.bench.papers.mask_report import is_slicing_cheaper
from slipstream.bench.papers.measured import Measured
from slipstream.bench.papers.page import read_results, rendered
from slipstream.cli.main import exit_code
from slipstream.core.errors import InvalidRequest
from slipstream.core.mask import SlicedMasks
from slipstream.core.results import Timings
from slipstream.core.stats import Outcomes
from slipstream.core.tree import ROOT
from slipstream.models.glide_init import GlideShape, config_for_target, init_from_target
from slipstream.models.glide_weights import save_glide
from slipstream.text.vocab import vocab_hash
from tiny_checkpoint import byte_tokenizer, tiny_llama

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "papers.md"


@pytest.mark.parametrize(
    ("alpha", "cost", "published"),
    [(0.516, 0.077, 1.46), (0.580, 0.49, 0.66), (0.648, 0.067, 1.97), (0.693, 0.068, 2.16)],
)
def test_the_expected_speedup_is_that_of_the_paper_s_table(alpha, cost, published):
    assert expected_speedup(alpha, 5, cost) == pytest.approx(published, abs=0.01)


def test_a_draft_that_is_always_right_and_free_is_worth_all_its_tokens():
    assert expected_speedup(1.0, 5, 0.0) == 6


def output(rounds, *, tokens=9, decode_s=2.0, draft_s=0.0):
    """An output of `rounds`, each with the depth it drafted and how many were accepted."""
    outcomes = Outcomes()
    for depth, accepted in rounds:
        outcomes.record(depth, depth, num_accepted=accepted)
    stats = outcomes.summary(num_spec_tokens=5, lossless=True)
    reply = Reply(tuple(range(tokens)), Timings(1.0, decode_s, draft_s, 0.0), stats)
    return Output(1, "qa", 0, (5,), reply)


def test_acceptance_counts_tested_tokens_and_drafted_ones_apart():
    figures = arm_figures([output([(5, 5), (5, 2)], draft_s=0.5)], 500)
    assert figures["alpha"] == 7 / 8
    assert figures["acceptance"] == 0.7
    assert figures["tokens_per_round"] == 4.5
    assert figures["cost"] == pytest.approx(0.1)
    assert figures["rates"] == [4.0]
    assert figures["by_output"]["tokens_per_round"] == [4.5]


def test_an_arm_that_drafts_nothing_has_a_speed_and_no_acceptance():
    figures = arm_figures([output([])], None)
    assert (figures["tokens_per_s"], figures["tokens_per_round"]) == (4.0, 1.0)
    assert figures["alpha"] is figures["cost"] is figures["expected"] is None


def measured(**rates):
    """Arms at temperature 0 with these rates."""
    arms = {name: {"rates": values, "alpha": values[0]} for name, values in rates.items()}
    return Measured({"0": arms}, {}, ["qa", "rag"] * 5)


def test_faster_is_reproduced_only_where_chance_is_ruled_out():
    of = measured(a=[2.0] * 10, b=[1.0] * 10, c=[1.9] * 5 + [2.1] * 5)
    assert verdict_of(faster("a", "b", 0), of).outcome is Outcome.REPRODUCED
    assert verdict_of(faster("b", "a", 0), of).outcome is Outcome.NOT_REPRODUCED
    undecided = verdict_of(faster("a", "c", 0), of)
    assert undecided.outcome is Outcome.NOT_REPRODUCED
    assert "no clear difference" in undecided.why


def test_more_is_reproduced_only_where_the_prompts_do_not_explain_it():
    lengths = {"a": [1.5, 1.6] * 5, "b": [1.2, 1.3] * 5, "c": [0.5, 2.4] * 5}
    arms = {
        name: {"alpha": sum(values), "by_output": {"alpha": values}}
        for name, values in lengths.items()
    }
    of = Measured({"0": arms}, {}, [])
    assert verdict_of(more("alpha", "a", "b", 0, what="acceptance"), of).outcome == "reproduced"
    verdict = verdict_of(more("alpha", "a", "c", 0, what="acceptance"), of)
    assert verdict.outcome is Outcome.NOT_REPRODUCED
    assert "choice of prompts" in verdict.why


def test_what_did_not_run_is_not_comparable():
    verdict = verdict_of(more("alpha", "a", "x", 0, what="acceptance"), measured(a=[1.0] * 10))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert verdict.why == "X was not run at temperature 0."


def test_a_ratio_of_one_category_is_of_its_questions_alone():
    of = measured(a=[2.0, 3.0] * 5, b=[1.0] * 10)
    assert of.ratio(0, "a", "b", category="qa").median == 2
    assert of.ratio(0, "a", "b", category="rag").median == 3


def writing(seconds):
    return {"tokens": [127, 255], "seconds": seconds, "repeated": [0.0, 0.0]}


def test_a_lead_is_kept_where_it_holds_at_every_length():
    slow, fast = writing([10.0, 20.0]), writing([5.0, 10.0])
    late = writing([5.0, 21.0])
    arms = {"plain": slow, "constant": slow, "SVIP": fast}
    assert speedup_at(arms, "SVIP", 256) == 2
    assert is_lead_kept(Measured({}, {"1": arms}, []))[0]
    assert not is_lead_kept(Measured({}, {"1": {**arms, "SVIP": late}}, []))[0]


def test_texts_that_are_too_short_show_nothing_of_long_ones():
    arms = {name: writing([1.0, 2.0]) for name in ("plain", "constant", "SVIP")}
    short = Measured({}, {"0": arms, "1": arms}, [])
    for claim in EXPERIMENTS["long"].claims:
        assert verdict_of(claim.judge, short).outcome is Outcome.NOT_COMPARABLE


def test_slicing_is_cheaper_only_where_it_is_for_every_tree():
    tree = {"nodes": 4, "sliced": 10.0, "rebuilt": 20.0, "round_ms": 1.0}
    trees = {"a": tree, "b": {**tree, "sliced": 30.0}}
    assert is_slicing_cheaper(Measured({}, {"trees": {"a": tree}}, []))[0]
    assert not is_slicing_cheaper(Measured({}, {"trees": trees}, []))[0]


def test_text_that_comes_again_is_counted():
    assert share_repeated(list(range(40))) == 0
    assert share_repeated([1, 2, 3, 4] * 20) > 0.9


def test_the_distance_of_a_sample_from_its_law():
    law = torch.tensor([0.5, 0.5, 0.0, 0.0])
    assert total_variation({0: 5, 1: 5}, law) == 0
    assert total_variation({2: 10}, law) == 1
    assert total_variation({0: 10}, law) == 0.5
    assert 0 < noise_95(law, 100) < 0.2


def test_differences_are_counted_token_by_token():
    long, short = output([], tokens=9), output([], tokens=7)
    assert differences([long, long], [long, short]) == {
        "outputs": 2,
        "other_outputs": 1,
        "tokens": 18,
        "other_tokens": 2,
    }


@st.composite
def growths(draw):
    """Trees that grow level by level."""
    parents, levels, level = [], [], [ROOT]
    for _ in range(draw(st.integers(1, 4))):
        first = len(parents)
        parents += [node for node in level for _ in range(draw(st.integers(0, 3)))]
        level = list(range(first, len(parents)))
        if not level:
            break
        levels.append(len(parents))
    return Growth(tuple(parents), tuple(levels))


@given(st.lists(growths().filter(lambda growth: growth.levels), min_size=1, max_size=4))
def test_rebuilt_masks_are_the_sliced_ones_at_every_level(trees):
    masks = SlicedMasks()
    for growth in trees:
        pairs = zip(round_masks(growth, masks.rows), round_masks(growth, rebuilt), strict=True)
        assert all(torch.equal(sliced, built) for sliced, built in pairs)


@pytest.mark.parametrize("widths", WIDTHS.values())
def test_a_product_tree_has_its_children_by_depth(widths):
    growth = Growth.product(widths)
    sizes = [b - a for a, b in zip((0, *growth.levels), growth.levels, strict=False)]
    expected, level = [], 1
    for width in widths:
        level *= width
        expected.append(level)
    assert sizes == expected


def test_an_unknown_experiment_is_refused():
    with pytest.raises(InvalidRequest, match="'medusa' is unknown"):
        chosen("svip,medusa")


def test_all_figures_of_the_page_are_those_of_the_files():
    page = PAGE.read_text()
    found = read_results(sorted((DOCS / "data").glob("papers-*.json")))
    assert set(found) == set(EXPERIMENTS)
    assert rendered(page, found) == page, "slipstream bench papers --render writes it anew"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny target with room for long outputs, a draft for it and two prompts."""
    folder = tmp_path_factory.mktemp("papers")
    target = tiny_llama()
    target.config.max_position_embeddings = 256
    target.save_pretrained(folder / "tiny")
    byte_tokenizer().save_pretrained(folder / "tiny")
    shape = GlideShape(target_layers=(1,), head_size=259, max_lag=8)
    hash_ = vocab_hash(byte_tokenizer().get_vocab())
    config = config_for_target(target, shape, name="tiny", tokenizer_hash=hash_)
    save_glide(init_from_target(target, config), torch.arange(259), folder / "draft")
    asked = [(1, "qa", ["abcabcab"]), (2, "writing", ["1 2 1 2 1"])]
    names = ("question_id", "category", "turns")
    lines = [json.dumps(dict(zip(names, item, strict=True))) for item in asked]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    options = {"target": "tiny", "draft": "draft", "prompts": "prompts.jsonl"}
    return [word for name, at in options.items() for word in (f"--{name}", str(folder / at))]


def test_experiments_run_and_are_written_into_their_page(models, tmp_path, monkeypatch, capsys):
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    only = "long,target-init,mask"
    sizes = ["--max-new-tokens", "6", "--long-tokens", "128", "--seeds", "3", "--laws", "1"]
    run = ["bench", "papers", *models, "--dtype", "float32", "--only", only, *sizes]
    run += ["--warmup", "0", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["slipstream", *run])
    assert exit_code(run) == 0
    assert "do not guarantee the quality" in capsys.readouterr().out
    values = json.loads(out.read_text())
    assert "/" not in values["environment"]["command"]
    found = values["experiments"]
    assert list(found) == only.split(",")
    arms = found["target-init"]["speed"]["1"]
    assert len(arms["plain"]["rates"]) == len(values["categories"]) == 2
    assert arms["MCSD 4x2x2x1"]["nodes"] > 1
    assert found["target-init"]["more"]["greedy"]["outputs"] == 2
    assert len(found["long"]["more"]["1"]["SVIP"]["seconds"]) == 1
    sections = [f"<!-- experiment {name} -->\n<!-- end of experiment -->\n" for name in found]
    page.write_text("".join(sections))
    assert exit_code(["bench", "papers", "--render", str(out), "--page", str(page)]) == 0
    text = page.read_text()
    verdicts = text.count("**reproduced**") + text.count("**not ")
    assert verdicts == sum(len(EXPERIMENTS[name].claims) for name in found)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--only", "medusa"], "'medusa' is unknown"),
        (["--page", "x.md"], "--render and --page"),
        (["--no-cross", "nowhere"], "no-cross are no directory"),
        (["--long-tokens", "64"], "long_tokens is 64"),
        (["--render", "nowhere.json", "--page", str(PAGE)], "holds no results"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(options, reason, capsys):
    assert exit_code(["bench", "papers", *options]) != 0
    assert reason in capsys.readouterr().err

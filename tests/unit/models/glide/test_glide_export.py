"""A draft without cross-attention is a checkpoint that others load, or a sentence says why not."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    PreTrainedTokenizerFast,
)

from slipstream.cli.main import exit_code
from slipstream.core.errors import ModelMismatch
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Session, Shape, StopPolicy
from slipstream.drafting.build import DraftTarget, build_drafter
from slipstream.models.glide.glide_export import export_hf
from slipstream.models.glide.glide_files import save_glide
from slipstream.models.glide.glide_init import GlideShape, config_for_target
from slipstream.models.glide.glide_scorer import load_glide
from slipstream.models.glide.target_parts import load_parts
from slipstream.models.loading import load_target_parts
from slipstream.models.scorer import Sync
from support.models import tiny_glide as tiny

TARGETS = {
    "llama": tiny.llama,
    "llama with tied embeddings": lambda: tiny.llama(tie_word_embeddings=True),
    "qwen2": tiny.qwen2,
    "qwen3": tiny.qwen3,
}
EVERY, FEW = tuple(range(tiny.VOCAB)), tuple(range(0, tiny.VOCAB, 3))
PROMPT = (3, 14, 15, 9, 26, 5, 35, 8, 9, 7)


def saved_target(model, base):
    model.save_pretrained(base)
    # One word less than the model knows: transformers adds one to the tokenizers of some models.
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in EVERY[:-1]}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w59")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(base)
    return base


def saved_draft(target, base, *, vocab=EVERY, layers=(), num_layers=1):
    """The directory of a draft of random weights for the target in a directory."""
    loaded = load_target_parts(str(target), dtype="float32")
    shape = GlideShape(layers, len(vocab), max_lag=4 if layers else 0, num_layers=num_layers)
    named = {"name": "target", "tokenizer_hash": loaded.tokenizer_hash}
    config = replace(config_for_target(loaded.model, shape, **named), dtype="float32")
    save_glide(tiny.draft(config), torch.tensor(vocab), base)
    return base


@pytest.fixture
def target(tmp_path):
    return saved_target(tiny.llama(), tmp_path / "target")


@pytest.mark.parametrize(("name", "num_layers"), [("llama", 2), *((name, 1) for name in TARGETS)])
def test_the_checkpoint_scores_the_trimmed_vocabulary_as_the_draft(name, num_layers, tmp_path):
    target = saved_target(TARGETS[name](), tmp_path / "target")
    weights = saved_draft(target, tmp_path / "w", vocab=FEW, num_layers=num_layers)
    export_hf(weights, str(target), tmp_path / "hf")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    scorer = load_glide(weights, load_parts(str(target), dtype="float32").parts)
    ours = torch.from_numpy(scorer.score([Sync(scorer.open(16), PROMPT, None)]).logits[0])
    with torch.inference_mode():
        theirs = written(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(theirs[list(FEW)], ours, rtol=1e-4, atol=1e-4)
    assert written.config.num_hidden_layers == num_layers
    embeddings, head = written.get_input_embeddings(), written.get_output_embeddings()
    assert (embeddings.weight is head.weight) == ("tied" in name)


def test_the_checkpoint_proposes_what_the_draft_proposes(target, tmp_path):
    weights = saved_draft(target, tmp_path / "w")
    export_hf(weights, str(target), tmp_path / "hf")
    loaded = load_parts(str(target), dtype="float32")
    at = DraftTarget("target", loaded.tokenizer_hash, loaded.parts, None, "float32")
    plan = Plan(max_depth=12, max_nodes=12, shape=Shape.CHAIN, stop=StopPolicy.FIXED)
    sequence = TokenSequence(Session("s", len(PROMPT), 30), PROMPT)
    trees = [
        finished(build_drafter(name, at).draft.propose(sequence, plan)).tree
        for name in (str(weights), f"vanilla:{tmp_path / 'hf'}")
    ]
    assert trees[0] == trees[1]
    assert len(trees[0]) == 12


def test_tokenizer_and_template_are_the_targets_own_files(target, tmp_path):
    export_hf(saved_draft(target, tmp_path / "w"), str(target), tmp_path / "hf")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "hf" / name).read_bytes() == (target / name).read_bytes()
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "float32")


def test_a_draft_that_reads_the_target_is_refused(target, tmp_path):
    weights = saved_draft(target, tmp_path / "w", layers=(1, 3))
    with pytest.raises(ModelMismatch, match="reads target layers 1, 3"):
        export_hf(weights, str(target), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_target_that_computes_otherwise_is_refused(tmp_path):
    """Granite has Llama's weights by name, and scales what goes through them."""
    scaled = GraniteConfig(**tiny.SIZES, embedding_multiplier=3.0, bos_token_id=None)
    target = saved_target(GraniteForCausalLM(scaled), tmp_path / "target")
    weights = saved_draft(target, tmp_path / "w")
    with pytest.raises(ModelMismatch, match=r"granite.*computes something else"):
        export_hf(weights, str(target), tmp_path / "hf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target", "w"]


def test_the_draft_of_another_target_is_refused(target, tmp_path):
    weights = saved_draft(target, tmp_path / "w")
    other = saved_target(tiny.llama(hidden_size=64), tmp_path / "other")
    with pytest.raises(ModelMismatch, match="hidden_size"):
        export_hf(weights, str(other), tmp_path / "hf")


def test_the_command_writes_it_and_says_where(target, tmp_path, capsys):
    weights, out = saved_draft(target, tmp_path / "w"), tmp_path / "hf"
    options = [str(weights), "--target", str(target), "--out", str(out)]
    assert exit_code(["train", "export-hf", *options]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert exit_code(["train", "export-hf", *options]) == 2
    assert "is there already" in capsys.readouterr().err

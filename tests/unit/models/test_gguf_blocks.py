"""A GGUF file in its own blocks: the model that transformers reads from it, but for rounding."""

import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from slipstream.core.errors import WeightsError
from slipstream.core.tree import TokenTree
from slipstream.models.format.gguf_file import TYPES, GgufFile
from slipstream.models.kv.batch import Part
from slipstream.models.loading import causal_model, load_model
from slipstream.models.native import library
from slipstream.models.native.gguf_weights import GgufSource
from slipstream.models.torch.loading import load_target_parts
from support.models import tiny, tiny_gguf

pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
SUPER = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K"}
"""More bits for values and the last product, as files that are called Q4_K_M have it."""
NARROW = {"token_embd": "Q8_0", "attn_output": "IQ4_NL", "ffn_down": "Q4_K", "attn_v": "Q5_1"}
"""Blocks of 32 where a row is no whole number of 256."""
UNLIKE = {
    **{"attn_q": "Q4_K", "attn_k": "Q6_K", "attn_v": "F16", "attn_output": "MXFP4"},
    **{"ffn_gate": "IQ4_XS", "ffn_up": "F32", "ffn_down": "Q3_K", "token_embd": "Q2_K"},
}
UNREADABLE = {at.name for at in GGMLQuantizationType} - {at.name for at in TYPES.values()}
PLAIN = {"attn_q": "F16", "attn_k": "BF16", "ffn_up": "BF16", "token_embd": "BF16"}
MIXTURES = {
    "Q4_0": lambda name: "Q4_0",
    "Q4_1": lambda name: "Q8_0" if name == "token_embd" else "Q4_1",
    "Q8_0": lambda name: "Q8_0",
    "F16": lambda name: "F16",
    "Q4_K": lambda name: SUPER.get(name, "Q4_K"),
    "Q5_K": lambda name: SUPER.get(name, "Q5_K"),
    "narrow": lambda name: NARROW.get(name, "Q5_0"),
    "unlike": UNLIKE.get,
    "plain": lambda name: PLAIN.get(name, "F32"),
}
HIDDEN = {"narrow": 160, "plain": 104}
TREE = TokenTree((4, 5, 6, 7), (-1, 0, -1, 2))
PATHS = [(4,), (4, 5), (6,), (6, 7)]
TOKENS = [(at * 37 + 5) % 259 for at in range(40)]


@pytest.fixture(
    scope="module",
    params=[(name, "llama") for name in MIXTURES]
    + [("Q4_1", "qwen2"), ("narrow", "qwen2"), ("Q4_K", "qwen3"), ("unlike", "qwen3")],
    ids="-".join,
)
def whole(request, tmp_path_factory):
    name, family = request.param
    """A file, and its logits by transformers."""
    folder = tmp_path_factory.mktemp("gguf")
    hidden = HIDDEN.get(name, tiny_gguf.HIDDEN)
    path = tiny_gguf.write(folder / f"{name}.gguf", MIXTURES[name], family, hidden)
    return path, tiny.hf_logits(load_target_parts(str(path), dtype="float32").model, TOKENS)


def in_blocks(file):
    loaded = load_model(str(file))
    assert isinstance(loaded.model, GgufSource)
    model = causal_model(loaded.model)
    assert model.engine.startswith("native")
    return model


def logits(model, tokens):
    return tiny.whole(model, tokens)[1]


def test_the_model_is_the_one_that_transformers_reads(whole):
    file, expected = whole
    found = logits(in_blocks(file), TOKENS)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.06
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.9
    # Layers lend their weights to a reference, so that it needs memory for one, not for all.
    model = load_model(str(file)).model.reference()
    error = np.linalg.norm(tiny.hf_logits(model, TOKENS) - expected) / np.linalg.norm(expected)
    assert error < 0.05, "it is bfloat16"
    assert {weight.device.type for weight in model.base_model.layers.parameters()} == {"meta"}


def test_a_tree_and_chunks_have_the_bits_of_plain_decoding(whole):
    model = in_blocks(whole[0])
    cache = model.open(64)
    model.prefill(cache, TOKENS[:-1])
    hidden, _ = model.forward([Part(cache, TOKENS[-1:], TREE)])
    found = model.logits(hidden)
    for node, path in enumerate(PATHS):
        assert np.array_equal(found[1 + node], logits(model, [*TOKENS, *path])[-1]), path


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0", "F16", "F32"])
def test_a_tied_embedding_is_an_untied_copy_held_once(kind, tmp_path):
    mixture = lambda name: kind if name == "token_embd" else "Q4_K"  # noqa: E731
    files = [tiny_gguf.write(tmp_path / f"{at}.gguf", mixture, is_tied=at) for at in (True, False)]
    tied, untied = map(in_blocks, files)
    assert np.array_equal(logits(tied, TOKENS), logits(untied, TOKENS))
    table = next(at for at in GgufFile(files[0]).tensors.items() if at[0] == "token_embd.weight")[1]
    assert untied.weight_bytes - tied.weight_bytes == table.num_bytes


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("plain") / "plain.gguf", MIXTURES["Q4_1"])


def head(name, *sizes, kind=""):
    """The description of a tensor with these sizes and its type, or the type's number."""
    number = GGMLQuantizationType[kind] if isinstance(kind, str) and kind else kind
    types = b"" if kind == "" else struct.pack("<I", number)
    return name.encode() + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes) + types


UP, DOWN = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"
BROKEN = [
    (b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight", r"in b\.gguf lack blk\.1\.ffn_up\.weight"),
    (head(DOWN, 512, 256), head(DOWN, 256, 512), r"down_proj\.weight has the shape \[512, 256\]"),
    (b"GGUF\x03", b"GGUF\x07", "its version is 7"),
    (b"GGUF\x03", b"GGML\x03", "it does not begin with GGUF"),
    (b"GGUF\x03", b"version", "it is a pointer of Git LFS alone"),
    (b"llama.block_count\x04", b"llama.block_count\x0d", "a field has the type 13"),
    *(
        (head(UP, 256, 512, kind="Q4_1"), head(UP, 256, 512, kind=kind), rf"of type {kind} \({UP}")
        for kind in (*sorted(UNREADABLE)[::4], 77)
    ),
    *(
        (head(name, 256, kind="F32"), head(name, 256, kind=kind), f"of type {kind}, but norms")
        for name, kind in (("blk.1.attn_norm.weight", "Q4_0"), ("output_norm.weight", "MXFP4"))
    ),
]


@pytest.mark.parametrize(("old", "new", "said"), BROKEN)
def test_a_broken_file_is_refused_in_a_sentence(plain, tmp_path, old, new, said):
    broken, data = tmp_path / "b.gguf", plain.read_bytes()
    assert old in data
    broken.write_bytes(data.replace(old, new, 1))
    with pytest.raises(WeightsError, match=said):
        load_model(str(broken))

"""llama.cpp in its process, on a tiny random model, where llama-cpp-python is installed."""

from importlib.util import find_spec

import numpy as np
import pytest
from gguf import GGUFWriter, TokenType

from slipstream.bench.peers.engine import EngineProcess
from support.models.tiny_gguf import finish
from support.services.processes import ROOT

# Only looked for: the library leaves files open, which is no business of this process.
pytestmark = pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"
)

WIDTH, HEADS, INNER, VOCABULARY = 32, 4, 64, 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """One layer of random weights, as a GGUF file of llama.cpp's own architecture."""
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{n}" for n in range(VOCABULARY)])
    writer.add_token_scores([0.0] * VOCABULARY)
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    writer.add_token_types([*kinds, *[TokenType.NORMAL] * (VOCABULARY - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)
    for name, rows, columns in _matrices():
        writer.add_tensor(name, rng.normal(size=(rows, columns)).astype(np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, dtype=np.float32))
    finish(writer)
    return path


def _matrices():
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        yield f"blk.0.{name}.weight", WIDTH, WIDTH
    for name in ("ffn_gate", "ffn_up"):
        yield f"blk.0.{name}.weight", INNER, WIDTH
    yield "blk.0.ffn_down.weight", WIDTH, INNER
    for name in ("token_embd", "output"):
        yield f"{name}.weight", VOCABULARY, WIDTH


def engine(model, mode):
    return EngineProcess(
        {
            "system": "llama.cpp",
            "mode": mode,
            "gguf": str(model),
            "threads": 1,
            "num_positions": 64,
            "llama_lookup_tokens": 2,
            "llama_repack": False,
        }
    )


def test_lookup_says_what_plain_decoding_says_in_no_more_forwards(model, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".dev"))
    answers = {}
    for mode in ("plain", "lookup"):
        at = engine(model, mode)
        try:
            first, again = (at.send(mode, [[5, 6, 7, 5, 6]], 12).answers[0] for _ in range(2))
            assert first == again  # nothing is left of the first
            answers[mode] = first
            assert "llama-cpp-python" in at.facts.versions
        finally:
            at.close()
    assert answers["plain"].token_ids == answers["lookup"].token_ids
    assert answers["plain"].num_forwards == answers["plain"].num_tokens
    assert answers["lookup"].num_forwards <= answers["plain"].num_forwards

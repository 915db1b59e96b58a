"""Laws of the native forward: transformers' numbers, and the same bits whatever computes them."""

import hashlib
import random
from functools import partial

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.tree import ROOT, TokenTree
from slipstream.models.dtypes import BFLOAT16, FLOAT32
from slipstream.models.kv.batch import Part
from slipstream.models.native import library
from slipstream.models.threads import set_num_threads
from support.models import families, tiny
from support.models.families import faint_model, grouped_model, odd_model, uneven_model
from support.models.in_memory import causal_model
from support.models.instruction_sets import teams

FAMILIES = ("llama", "qwen2", "qwen3")
TREE = TokenTree((4, 5, 6, 7, 8, 9, 4), (-1, 0, -1, 2, 1, 2, 4))
PATHS = [(4,), (4, 5), (6,), (6, 7), (4, 5, 8), (6, 9), (4, 5, 8, 4)]
pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
MAKERS = {
    **{family: partial(tiny.hf_model, family) for family in FAMILIES},
    "odd": odd_model,
    "grouped": grouped_model,
    "uneven": uneven_model,
    "faint": faint_model,
    **{family: families.MAKERS[family] for family in ("granite", "olmo3", "phi3", "gemma3_text")},
}


def native(make, dtype=torch.float32):
    """A model whose caches keep all hidden states."""
    own = make(dtype=dtype)
    return causal_model(own, engine="native", hidden_layers=range(own.config.num_hidden_layers + 1))


def cached(cache):
    """All that a cache has of its positions: keys, values and hidden states."""
    return [cache.gather(at, 0, cache.count) for at in cache.pool.layout.shapes()]


def same(ours, theirs):
    return all(map(np.array_equal, ours, theirs))


def norm(values):
    return np.linalg.norm(values.astype(np.float64))


def narrowed(values):
    return values.bfloat16().float()


class NarrowCache(DynamicCache):
    def update(self, keys, values, *place, **more):
        return super().update(narrowed(keys), narrowed(values), *place, **more)


def words(model, count):
    return [token % model.vocab_size for token in tiny.tokens(count)]


def require_transformers_numbers(make):
    model = native(make)  # the text is longer than any window
    tokens = words(model, 150)
    theirs = make()
    states = tiny.hf_states(theirs)
    expected, cache = tiny.hf_logits(theirs, tokens), model.open(len(tokens))
    hidden, (slots,) = model.forward([Part(cache, tokens)])
    cache.keep(slots)
    assert norm(model.logits(hidden) - expected) / norm(expected) < 2e-5
    assert len(states) == len(model.layout.hidden_layers) == model.layout.num_layers + 1
    for ours, exact in zip(cached(cache)[model.layout.num_layers :], states, strict=True):
        assert norm(np.concatenate(ours, axis=1) - exact) / norm(exact) < 2e-5


@pytest.mark.parametrize("name", {**MAKERS, **families.MAKERS})
def test_float32_is_what_transformers_computes(name):
    require_transformers_numbers({**MAKERS, **families.MAKERS}[name])


@pytest.mark.parametrize("window", [1, 5, 64, 127, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_node_sees_the_window_before_it_in_any_company(window, dtype):
    make = partial(families.family_model, "mistral", sliding_window=window)
    require_transformers_numbers(make)
    model, tokens = native(make, dtype), tiny.tokens(127)
    cache = model.open(140)
    model.prefill(cache, tokens)
    hidden, _ = model.forward([Part(cache, [3], TREE)])
    for node, path in enumerate(PATHS):
        expected, _ = tiny.whole(model, [*tokens, 3, *path])
        assert np.array_equal(hidden[1 + node], expected[-1]), path


@pytest.mark.parametrize("name", MAKERS)
def test_bfloat16_rounds_what_is_multiplied_by_weights_and_what_is_cached_and_nothing_else(name):
    """The result is nearer to float32 than transformers', which rounds after every operation."""
    model, rounded = native(MAKERS[name], torch.bfloat16), MAKERS[name](dtype=torch.bfloat16)
    tokens = words(model, 60)
    wide = MAKERS[name](dtype=torch.bfloat16).float()
    exact, theirs = tiny.hf_logits(wide, tokens), tiny.hf_logits(rounded, tokens)
    for part in wide.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_pre_hook(lambda _, args: (narrowed(args[0]),))
    expected = tiny.hf_logits(wide, tokens, past_key_values=NarrowCache())
    _, ours = tiny.whole(model, tokens)
    assert norm(ours - expected) < norm(theirs - expected) / 4
    assert norm(ours - exact) < norm(theirs - exact)
    assert model.dtype == BFLOAT16


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_same_bits_in_any_company(name, dtype):
    model = native(MAKERS[name], dtype)
    tokens = words(model, 130)
    whole = model.open(130)
    together, (slots,) = model.forward([Part(whole, tokens)])
    whole.keep(slots)
    for size in (1, 2, 3, 7, 8, 13, 64):
        cache, parts = model.open(130), []
        for start in range(0, len(tokens), size):
            hidden, (slots,) = model.forward([Part(cache, tokens[start : start + size])])
            cache.keep(slots)
            parts.append(hidden)
        assert np.array_equal(np.concatenate(parts), together), size
        assert same(cached(cache), cached(whole)), size


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_kernels_and_any_number_of_threads_give_the_same_bits(name, dtype, monkeypatch):
    seen = {}
    for kernel, threads in teams():
        monkeypatch.setenv(NATIVE_VARIABLE, kernel)
        set_num_threads(threads)
        model = native(MAKERS[name], dtype)
        cache = model.open(90)
        model.prefill(cache, words(model, 70))
        hidden, _ = model.forward([Part(cache, [3], TREE)])
        seen[kernel, threads] = (hidden, model.logits(hidden), *cached(cache))
    first = next(iter(seen.values()))
    for key, values in seen.items():
        assert same(values, first), key


def model_of_known_weights():
    """Weights that no generator of random numbers had a part in."""
    model = tiny.hf_model()
    state = 1
    with torch.no_grad():
        for weight in model.parameters():
            values = []
            for _ in range(weight.numel()):
                state = state * 1103515245 + 12345 & 0x7FFFFFFF
                values.append((state >> 12) / 2**19 - 0.5)
            scale = 1.0 if weight.dim() == 1 else 0.4
            weight.copy_(torch.tensor(values).view_as(weight) * scale + (weight.dim() == 1))
    return model


def digest_of_known_weights():
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.bfloat16):
        model = causal_model(model_of_known_weights().to(dtype), engine="native")
        for values in tiny.whole(model, [(at * 7 + 3) % tiny.VOCAB for at in range(200)]):
            digest.update(values.tobytes())
    return digest.hexdigest()


# Recorded on an AMD EPYC with AVX-512; other processors have to give the same.
KNOWN_DIGEST = "b2316efdcb127c195cd3e58bbc0a71cc839eb5c178659a5dae1a8c6c2e6d0d1c"


def test_machines_can_be_compared_by_the_digest_of_an_output():
    assert digest_of_known_weights() == KNOWN_DIGEST


def test_float32_keeps_weights_that_bfloat16_holds_in_it_and_rounds_no_tokens():
    exact = tiny.hf_model(dtype=torch.bfloat16).float()
    tokens = tiny.tokens(60)
    expected = tiny.hf_logits(exact, tokens)
    narrow, wide = causal_model(exact, engine="native"), native(MAKERS["llama"])
    assert narrow.weight_bytes < 0.6 * wide.weight_bytes
    assert narrow.dtype == wide.dtype == FLOAT32
    _, logits = tiny.whole(narrow, tokens)
    assert norm(logits - expected) / norm(expected) < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 2.0**-70])
def test_a_tied_embedding_is_an_untied_copy_held_once_if_products_have_all_of_it(dtype, size):
    models = [tiny.hf_model(dtype=dtype) for _ in range(2)]
    for model in models:
        with torch.no_grad():
            model.model.embed_tokens.weight[::3] *= size
            model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    models[0].lm_head.weight = models[0].model.embed_tokens.weight
    models[0].config.tie_word_embeddings = True
    tied, untied = (causal_model(model, engine="native") for model in models)
    tokens = tiny.tokens(40)
    assert all(map(np.array_equal, tiny.whole(tied, tokens), tiny.whole(untied, tokens)))
    is_rounded = dtype == torch.bfloat16 and size < 1
    assert (tied.weight_bytes < untied.weight_bytes) is not is_rounded


CASES = [("llama", torch.bfloat16), ("qwen2", torch.bfloat16), ("qwen3", torch.float32)]
STARTS = [1, 121, 126, 127, 128, 129, 250]
LENGTH = 9


def one_by_one(model, tokens, start):
    cache = model.open(len(tokens))
    model.prefill(cache, tokens[:start])
    states = []
    for token in tokens[start:]:
        hidden, (slots,) = model.forward([Part(cache, [token])])
        cache.keep(slots)
        states.append(hidden[0])
    return states, cached(cache)


def bushy(path, seed):
    """A tree that holds `path`, with wrong siblings before and after, and where it is in it."""
    rng = random.Random(seed)
    tokens, parents, nodes, parent = [], [], [], ROOT
    for token in path:
        wrong = [rng.randrange(1, tiny.VOCAB) for _ in range(rng.randrange(4))]
        wrong = [other for other in dict.fromkeys(wrong) if other != token]
        place = rng.randrange(len(wrong) + 1)
        level = [*wrong[:place], token, *wrong[place:]]
        nodes.append(len(tokens) + place)
        tokens += level
        parents += [parent] * len(level)
        parent = nodes[-1]
    return TokenTree(tuple(tokens), tuple(parents)), nodes


@pytest.mark.parametrize(("family", "dtype"), CASES)
@pytest.mark.parametrize("start", STARTS)
def test_a_tree_and_what_follows_its_accepted_path_have_the_bits_of_plain_decoding(
    family, dtype, start
):
    model = native(MAKERS[family], dtype)
    tokens = tiny.tokens(start + LENGTH, seed=start)
    plain, written = one_by_one(model, tokens, start)
    tree, nodes = bushy(tokens[start + 1 :], seed=start)
    cache = model.open(len(tokens))
    model.prefill(cache, tokens[:start])
    hidden, (slots,) = model.forward([Part(cache, tokens[start : start + 1], tree)])
    for state, row in zip(plain, [0, *(1 + node for node in nodes)], strict=True):
        assert np.array_equal(hidden[row], state)
    cache.keep([slots[0], *(slots[1 + node] for node in nodes[:4])])
    hidden, (slots,) = model.forward([Part(cache, tokens[start + 5 :])])
    cache.keep(slots)
    assert np.array_equal(hidden, np.stack(plain[5:]))
    assert same(cached(cache), written)

"""Sessions on pages that lie between each other's, with trees, for models of fixed shapes."""

import random

from slipstream.core.tree import TokenTree
from slipstream.models.target.causal import CausalModel
from slipstream.models.target.token_layout import Part
from support.models import tiny

LENGTHS = (130, 5, 260, 127, 1)


def tree_of(seed, size):
    """Paths that leave the first one at every depth."""
    rng = random.Random(seed)
    tokens, parents, taken = [], [], set()
    for node in range(size):
        parent, token = rng.randrange(-1, node), rng.randrange(1, tiny.VOCAB)
        if (parent, token) in taken:
            parent = node - 1
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
    return TokenTree(tuple(tokens), tuple(parents))


def shaped(family="llama", device="cpu", **options):
    return CausalModel(tiny.hf_model(family).to(device), engine="shaped", **options)


def parts_on_scattered_pages(model, trees, pending=2):
    """Sessions whose pages lie between each other's."""
    pool = model.pool(16)
    caches = [model.open_in(pool) for _ in LENGTHS]
    texts = [tiny.tokens(length + pending, seed=length) for length in LENGTHS]
    for end in (100, 200, 300):
        for cache, text in zip(caches, texts, strict=True):
            stop = min(len(text) - pending, end)
            if stop > cache.count:
                model.prefill(cache, text[cache.count : stop])
    ends = [text[-pending:] for text in texts]
    return [Part(*given) for given in zip(caches, ends, trees, strict=True)]

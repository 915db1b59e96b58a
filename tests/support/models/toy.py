"""A model of six tokens whose logits are a table, and trees of its tokens."""

import numpy as np
from hypothesis import strategies as st

from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Proposal, Session, Verification
from slipstream.core.verify.verify import verify

VOCAB = 6
PROMPT = (1, 4, 2)


def session_of(sampling, verification=Verification.EXACT, **fields):
    return Session("s", len(PROMPT), 100, sampling, verification=verification, **fields)


class ToyModel:
    """Logits [VOCAB] as a function of the last two tokens, coarse enough for ties."""

    def __init__(self, seed=0):
        table = np.random.default_rng(seed).standard_normal((VOCAB, VOCAB, VOCAB), np.float32)
        self._table = (table * 4).round() / 2

    def logits(self, tokens):
        return self._table[tokens[-2], tokens[-1]]

    def rows(self, prefix, tree, visited=None):
        def row(node):
            if visited is not None:
                visited.append(node)
            return self.logits([*prefix, *path_tokens(tree, node)])

        return row


def path_tokens(tree, node):
    return tuple(tree.tokens[step] for step in tree.path(node))


def choose(session, logits, prefix, *, constraint=None):
    """The token that plain decoding puts after `prefix`."""
    return verify(session, prefix, Proposal(), lambda _: logits, constraint=constraint).token


def plain(session, model, count, constraint=None):
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(choose(session, model.logits(tokens), tokens, constraint=constraint))
    return tokens[len(PROMPT) :]


@st.composite
def trees(draw, sizes=(0, 14), vocab=VOCAB):
    tokens, parents = [], []
    for _ in range(draw(st.integers(*sizes))):
        parent = draw(st.integers(ROOT, len(tokens) - 1))
        token = draw(st.integers(0, vocab - 1))
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    return TokenTree(tuple(tokens), tuple(parents))


def forest(*branches):
    tokens, parents = [], []
    for branch in branches:
        for depth, token in enumerate(branch):
            parents.append(ROOT if depth == 0 else len(tokens) - 1)
            tokens.append(token)
    return TokenTree(tuple(tokens), tuple(parents))

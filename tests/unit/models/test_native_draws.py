"""Tokens that native code names for a draw are enough for it: the draw is that of all tokens."""

import numpy as np
import pytest

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.types import SamplingParams, Session
from slipstream.core.verify.draws import draw_among, draw_keys
from slipstream.models.native import library
from slipstream.models.native.library import NativeShape
from slipstream.models.native.model import NativeModel
from slipstream.models.native.weights import plain
from support.models.instruction_sets import available
from support.models.toy import choose

pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no kernels were built")


@pytest.fixture(params=available() if library.PATH.is_file() else [])
def model(request, monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, request.param)
    sizes = dict.fromkeys(("hidden", "head_dim", "mlp"), 32)
    counts = dict.fromkeys(("layers", "heads", "key_heads"), 1)
    return NativeModel(NativeShape(**sizes, **counts), plain(np.zeros((16, 32), np.float32)))


def logits_of(count, seed):
    """From flat to peaked."""
    noise = np.random.default_rng(seed).standard_normal(count, np.float32)
    return noise * 2 * (1 + seed % 5)


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("count", [1, 5, 16, 300, 49_152])
def test_a_draw_among_contenders_is_that_among_all_tokens(model, count, temperature):
    numbers = []
    for seed in range(40):
        logits, position = logits_of(count, seed), 3 + seed
        sampling = SamplingParams(temperature=temperature, seed=seed)
        session = Session("s", 3, 100, sampling)
        expected = choose(session, logits, range(position))
        assert draw_among(logits, sampling, position, model.contenders) == expected
        found = model.contenders(logits, temperature, draw_keys(sampling, position))
        assert found[1] == logits.max()
        assert found[0].tolist() == sorted(set(found[0].tolist()))
        numbers.append(len(found[0]))
    assert sum(numbers) <= 40 * max(count // 10, 5)


def test_excluded_tokens_are_never_drawn_and_no_distribution_has_no_contenders(model):
    sampling = SamplingParams(temperature=1.0, seed=1)
    logits = logits_of(1000, 1)
    logits[10:] = -np.inf
    drawn = {draw_among(logits, sampling, at, model.contenders) for at in range(50)}
    assert drawn <= set(range(10))
    for bad in (np.nan, np.inf):
        logits[17] = bad
        assert draw_among(logits, sampling, 3, model.contenders) is None
    assert model.contenders(np.full(20, -np.inf, np.float32), 1.0, (1, 2)) is None

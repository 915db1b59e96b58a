"""Sizes and times of models on GPUs follow from their shapes and from data sheets."""

from dataclasses import replace
from math import prod

import pytest

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.models import memory
from slipstream.models.scorer import NUM_SINKS, WINDOW
from slipstream.models.target.architecture import parse
from slipstream.sizing import roofline
from slipstream.sizing.gpus import GPUS, MODELS
from slipstream.sizing.roofline import FLOPS_SHARE, GATHERED, GRAPHS_SHARE, KV_SHARE, GpuTarget

H100, H200 = GPUS["h100"], GPUS["h200"]
LLAMA = GpuTarget(parse(MODELS["llama-3-8b"]), H100, 1, 4096)


@pytest.mark.parametrize(
    ("name", "billions", "kv_per_token"),
    [
        ("llama-3-8b", 8.03, 131072),
        ("llama-3-70b", 70.55, 327680),
        ("qwen3-8b", 8.19, 147456),
        ("mistral-7b", 7.25, 131072),
    ],
)
def test_weights_and_keys_are_those_of_the_published_model(name, billions, kv_per_token):
    model = parse(MODELS[name])
    sizes = GpuTarget(model, replace(H200, memory=1e12), 1, 4096).sizes()
    assert sizes.weights / 2e9 == pytest.approx(billions, abs=0.005)
    assert sizes.kv_per_token == kv_per_token
    embedding = 2 * model.vocab_size * model.hidden
    assert sizes.read == sizes.weights - embedding, "a step looks up some rows of it only"


def test_a_model_fits_with_its_largest_batch_and_not_with_more():
    for target in (LLAMA, replace(LLAMA, gpu=H200), replace(LLAMA, context=500, num_gpus=4)):
        sizes, most = target.sizes(), target.max_sessions()
        session = target.context * sizes.kv_per_token
        free = target.gpu.memory - sizes.weights - target.workspace()
        assert most * session < free * 0.85 < (most + 2) * session + 2e9
    assert replace(LLAMA, context=8192).max_sessions() == LLAMA.max_sessions() // 2


def test_shares_of_memory_are_those_that_serving_takes():
    assert (memory._AUTO_SHARES[True], 1 / memory._PARTS) == (KV_SHARE, GRAPHS_SHARE)


def test_a_step_reads_weights_once_and_each_sessions_keys():
    keys = LLAMA.context * LLAMA.sizes().kv_per_token
    for sessions, rows in ((1, 1), (8, 1), (8, 16)):
        gathered, in_place = (
            LLAMA.step(sessions, rows, is_gathered=is_gathered) for is_gathered in (True, False)
        )
        assert in_place.read == LLAMA.sizes().read + sessions * keys
        assert gathered.read - in_place.read == (GATHERED - 1) * sessions * keys
    assert LLAMA.step(8, 16).flops == pytest.approx(128 * LLAMA.step(1, 1).flops)


def test_products_are_two_operations_a_weight_and_attention_four_a_key():
    model = LLAMA.model
    weights = sum(prod(shape) for _, shape in model.layer(0)) * model.num_layers
    weights += model.hidden + model.vocab_size * model.hidden
    attention = 4 * model.num_layers * model.num_heads * model.head_dim * LLAMA.context
    assert LLAMA.step(1, 1).flops == pytest.approx(2 * weights + attention)


@pytest.mark.parametrize("sessions", [1, 8, 32])
def test_computing_binds_from_the_rows_that_are_named(sessions):
    rows = LLAMA.bound_rows(sessions)
    below, above = (LLAMA.step(sessions, count) for count in (rows - 1, rows + 1))
    assert below.floor_s(H100) == below.read / H100.bandwidth
    assert above.floor_s(H100) == above.flops / H100.flops


def test_expected_times_are_above_both_floors():
    for sessions, rows in ((1, 1), (8, 6), (32, 64)):
        work = LLAMA.step(sessions, rows)
        assert work.expected_s(H100) > work.floor_s(H100)
        assert work.expected_s(H100) > work.flops / (H100.flops * FLOPS_SHARE)
    assert LLAMA.draft_step(1).expected_s(H100) < 0.1 * LLAMA.step(1, 1).expected_s(H100)


def test_a_draft_reads_its_window_of_a_long_context_and_all_of_a_short_one():
    assert roofline.MOST_READ == NUM_SINKS + WINDOW
    short, full, long = (replace(LLAMA, context=count).draft_step(8) for count in (320, 640, 8192))
    assert full == long
    assert full.read - short.read == 8 * 320 * LLAMA.sizes().draft_kv_per_token


def test_times_for_the_formula_are_those_of_the_steps():
    times = LLAMA.times(16)
    assert times.curve().seconds(1) == LLAMA.step(1, 1).expected_s(H100)
    together = times.curve().seconds(16, 16)
    assert together == pytest.approx(LLAMA.step(16, 1).expected_s(H100), rel=0.01)
    assert times.level(64) == pytest.approx(LLAMA.draft_step(64).expected_s(H100))


def test_gpus_share_a_model_evenly_and_pay_for_it():
    eight = replace(LLAMA, num_gpus=8)
    assert eight.sizes().weights == LLAMA.sizes().weights / 8
    assert eight.sizes().kv_per_token == LLAMA.sizes().kv_per_token / 8
    assert eight.step(1, 1).floor_s(H100) == pytest.approx(LLAMA.step(1, 1).floor_s(H100) / 8)
    assert eight.step(1, 1).launch_s > LLAMA.step(1, 1).launch_s


def test_what_does_not_fit_names_what_does():
    large = parse(MODELS["llama-3-70b"])
    with pytest.raises(CapacityError, match="beside 141 GB of weights; 2 have"):
        GpuTarget(large, H100, 1, 4096)
    with pytest.raises(CapacityError, match="no number of them has"):
        GpuTarget(large, replace(H100, memory=8e9), 1, 4096)


@pytest.mark.parametrize("changes", [{"num_gpus": 3}, {"num_gpus": 0}])
def test_gpus_that_do_not_divide_the_key_heads_are_refused(changes):
    with pytest.raises(InvalidRequest, match="8 key heads"):
        replace(LLAMA, **changes)


def test_a_context_beyond_the_models_is_refused():
    with pytest.raises(InvalidRequest, match="the context is 8193 tokens, but the model has 1 to"):
        replace(LLAMA, context=8193)

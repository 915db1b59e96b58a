"""A mirror holds what it was sent, and what a reader was shown stays as it was."""

import numpy as np
import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.drafting.kv_mirror import KvMirror
from slipstream.models.dtypes import CPU, FLOAT32
from slipstream.models.kv.pool import KvLayout

LAYERS = (5, 2)
LAYOUT = KvLayout(2, 3, 4, FLOAT32, CPU)


def truth(count, seed=0):
    """Two layers [2, 2 * heads, count, head_dim]."""
    return np.random.default_rng(seed).normal(size=(2, 6, count, 4)).astype(np.float32)


def send(mirror, whole, start, end):
    mirror.write(start, whole[:, :, start:end])


def assert_shows(view, whole, count):
    assert view.count == count
    for layer, values in zip(LAYERS, whole, strict=True):
        keys, vals = view.layers[layer]
        assert np.array_equal(keys[:, :count], values[:3, :count])
        assert np.array_equal(vals[:, :count], values[3:, :count])


@pytest.fixture
def mirror():
    return KvMirror(LAYERS, LAYOUT, limit=1000)


def test_slices_of_any_size_add_up_to_the_whole(mirror):
    whole, at = truth(900), 0
    assert mirror.view().count == mirror.num_bytes == 0
    for size in (1, 127, 1, 300, 2, 469):
        send(mirror, whole, at, at + size)
        at += size
        assert_shows(mirror.view(), whole, at)
    assert mirror.num_bytes >= 900 * LAYOUT.bytes_per_token


@pytest.mark.parametrize("forget_first", [False, True])
def test_what_a_reader_was_shown_stays_as_it_was(mirror, forget_first):
    first, second = truth(500), truth(500, seed=1)
    send(mirror, first, 0, 20)
    shown = mirror.view()
    if forget_first:
        mirror.truncate(8)
    send(mirror, second, 8, 300)
    send(mirror, second, 300, 500)
    assert_shows(shown, first, 20)


def test_room_is_never_made_past_the_limit():
    mirror = KvMirror(LAYERS, LAYOUT, limit=100)
    mirror.reserve(10**9)
    assert mirror.num_bytes == 128 * LAYOUT.bytes_per_token


def test_a_mirror_may_leave_out_positions_behind_the_first_ones(mirror):
    whole = truth(900)
    mirror.free(skipped=512)
    mirror.reserve(900)
    assert mirror.num_bytes == 512 * LAYOUT.bytes_per_token, "no room for what is left out"
    for start, end in ((0, 100), (100, 128), (640, 700), (700, 900)):
        send(mirror, whole, start, end)
    view = mirror.view()
    assert (view.count, view.num_held, view.skipped) == (900, 388, 512)
    expected = np.concatenate((whole[:, :, :128], whole[:, :, 640:]), 2)
    for layer, values in zip(LAYERS, expected, strict=True):
        assert np.array_equal(np.concatenate(view.layers[layer])[:, :388], values)


def test_positions_that_are_left_out_count_as_if_they_were_there(mirror):
    whole = truth(900)
    mirror.free(skipped=512)
    send(mirror, whole, 0, 128)
    assert mirror.count == 640
    send(mirror, whole, 640, 900)
    mirror.truncate(300)
    assert (mirror.count, mirror.view().num_held) == (640, 128)
    mirror.truncate(50)
    assert mirror.count == mirror.view().num_held == 50


@pytest.mark.parametrize(("start", "end"), [(100, 200), (300, 310), (639, 641)])
def test_positions_that_are_left_out_are_refused(mirror, start, end):
    mirror.free(skipped=512)
    send(mirror, truth(900), 0, 128)
    with pytest.raises(InvalidRequest, match="512 from 128 on are left out"):
        send(mirror, truth(900), start, end)
    assert mirror.count == 640

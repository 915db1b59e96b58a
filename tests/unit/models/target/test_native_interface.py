"""Laws of the C interface: what is not of the length that comes with it is refused, not read."""

from array import array

import numpy as np
import pytest

from slipstream.core.errors import ModelError
from slipstream.models.dtypes import BFLOAT16, FLOAT32
from slipstream.models.kv.batch import Batch
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.native import library, weights
from slipstream.models.native.library import ChainState, NativeShape, RankedRows, call, team
from slipstream.models.native.model import CrossKv, NativeModel
from slipstream.models.native.weights import BlockWeights

pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
POSITIONS, TABLE = 16, array("q", range(4))
SIZES = {"layers": 1, "hidden": 32, "heads": 2, "key_heads": 1, "head_dim": 16, "mlp": 32}
LAYOUT = KvLayout(1, 1, 16, FLOAT32, "cpu")
OTHERS = np.zeros((1, 3, 16), np.float32)


def ones(*shape):
    return np.ones(shape, np.float32)


def matrix(outputs, inputs=32):
    return weights.plain(np.zeros((outputs, inputs), np.float32))


def made(**sizes):
    shape = NativeShape(**{**SIZES, "norm_epsilon": 1e-5, "attention_scale": 1.0, **sizes})
    return NativeModel(shape, matrix(4))


def paired(*without, features=2, outputs=2):
    """A forward of a model with features, of which so many rows are given and have room."""
    model, (batch, _) = made(has_features=1), tokens()
    model.set_rotary(ones(POSITIONS, 8), ones(POSITIONS, 8))
    attention = BlockWeights(ones(32), [matrix(32, 64), *[matrix(16, 64)] * 2], matrix(32))
    model.set_layer(0, [attention, BlockWeights(ones(32), [matrix(32), matrix(32)], matrix(32))])
    model.set_head(ones(32), matrix(4))
    if "norm" not in without:
        model.set_feature_norm(ones(32))
    return forward((batch, CrossKv(features=ones(features, 32), outputs=ones(outputs, 32))), model)


def filled(*without):
    """A model with all weights but some; its layer reads the keys of another model."""
    model = made(num_cross=1)
    attention = BlockWeights(ones(32), [matrix(32), matrix(16), matrix(16)], matrix(32))
    other = BlockWeights(ones(32), [matrix(32)], matrix(32))
    mlp = BlockWeights(ones(32), [matrix(32), matrix(32)], matrix(32))
    if "rotary" not in without:
        model.set_rotary(ones(POSITIONS, 8), ones(POSITIONS, 8))
    if "layer" not in without:
        model.set_layer(0, [attention, other, mlp])
    if "head" not in without:
        model.set_head(ones(32), matrix(4))
    return model


class Table:
    """A block table in an array, or nowhere."""

    def __init__(self, slots=None):
        self.num_slots = len(TABLE)
        self.address = slots.buffer_info()[0] if slots else 0

    def table_address(self):
        return self.address


def tokens(**changes):
    """Two tokens, the second of which sees the first and itself among its ancestors."""
    batch = Batch([1, 2], [0, 1], [0, 1], [Table(TABLE)] * 2, [1, 1], [(), (1,)], [2])
    cross = CrossKv([0, 3], [OTHERS.ctypes.data, OTHERS.ctypes.data, 48, 3] * 2)
    for name, values in changes.items():
        setattr(cross if hasattr(cross, name) else batch, name, values)
    return batch, cross


def forward(found, model=None, kept=2, layout=LAYOUT):
    pool = KvPool(layout, 1, scratch_rows=1)
    return (model or filled()).forward(pool, found[0], num_kept=kept, cross=found[1])


def test_a_batch_within_its_arrays_is_computed():
    assert forward(tokens()).shape == paired().shape == (2, 32)


ODD_TABLE = array("q", [0, 256, 2, 3])
BATCHES = {
    "a token without an embedding": {"tokens": [1, 4]},
    "a token below the first": {"tokens": [-1, 2]},
    "a position without factors": {"positions": [0, POSITIONS]},
    "a position below the first": {"positions": [-1, 1]},
    "a slot behind the cache": {"slots": [0, 256]},
    "a slot before the cache": {"slots": [-1, 1]},
    "more of a table than it has": {"num_seen": [1, 5]},
    "less than nothing of a table": {"num_seen": [1, -1]},
    "a table of slots behind the cache": {
        "block_tables": [Table(ODD_TABLE)] * 2,
        "num_seen": [1, 2],
    },
    "no table": {"block_tables": [Table()] * 2},
    "an ancestor behind the cache": {"ancestors": [(), (256,)]},
    "an ancestor before the cache": {"ancestors": [(), (-1,)]},
    "more of another model's keys than there are": {"num_read": [0, 4]},
    "less than nothing of another model's keys": {"num_read": [0, -1]},
    "another model without keys": {"places": [0, OTHERS.ctypes.data, 48, 3] * 2},
}
LAYOUTS = {
    "layers": KvLayout(2, 1, 16, FLOAT32, "cpu"),
    "type": KvLayout(1, 1, 16, BFLOAT16, "cpu"),
    "elements of a head": KvLayout(1, 1, 8, FLOAT32, "cpu"),
    "hidden states": LAYOUT.keeping((0,), 16),
}
FORWARDS = {
    **{name: lambda name=name: forward(tokens(**BATCHES[name])) for name in BATCHES},
    **{
        f"other {name}": lambda name=name: forward(tokens(), layout=LAYOUTS[name])
        for name in LAYOUTS
    },
    "outputs of the last layer for a part of the tokens": lambda: forward(
        tokens(), kept=1, layout=LAYOUT.keeping((1,), 32)
    ),
    **{
        f"a model without its {name}": lambda name=name: forward(tokens(), filled(name))
        for name in ("rotary", "layer", "head")
    },
    "a feature too few": lambda: paired(features=1),
    "outputs without room": lambda: paired(outputs=1),
    "features without their norm": lambda: paired("norm"),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_place_outside_of_an_array_and_a_cache_or_model_of_another_form_are_refused(name):
    with pytest.raises(ModelError, match="native code refuses forward"):
        FORWARDS[name]()


@pytest.mark.parametrize(
    "name", ["positions", "slots", "block_tables", "num_seen", "ancestors", "num_read"]
)
def test_arrays_of_different_lengths_are_refused(name):
    batch, cross = tokens()
    getattr(cross if hasattr(cross, name) else batch, name).pop()
    with pytest.raises(ModelError, match="not as many places"):
        forward((batch, cross))


POINTS, IDS = np.array([0.0, 1.0]), np.arange(4)


def follow(ids=IDS, stride=2, num_noisy=1, **changes):
    """A chain of two tokens behind the first of `tokens`."""
    found = np.empty((2, 8), np.float32)
    state = ChainState(limit=2, max_depth=9, factor=1.0, path_prob=1.0, num_points=2)
    state.points = POINTS.ctypes.data
    for name in changes.keys() & dict(ChainState._fields_):
        setattr(state, name, changes.pop(name))
    batch, cross = tokens(**changes)
    chains = (ChainState * 1)(state)
    rows = RankedRows(ids.ctypes.data, 2, found.ctypes.data, num_noisy)
    pool = KvPool(LAYOUT, 1, scratch_rows=1)
    filled().follow(pool, batch, cross, 1, None, chains, stride, rows)
    return chains[0].length


def test_a_chain_with_room_is_followed():
    assert follow() == 2


CHAINS = {
    "no token": {"limit": 0},
    "more tokens than rows": {"limit": 3},
    "more tokens than the table has": {"limit": 5, "stride": 5},
    "a position without factors": {"positions": [POSITIONS - 1, 1]},
    "a table of slots behind the cache": {"block_tables": [Table(ODD_TABLE)] * 2},
    "another model without keys": {"places": [0, 0, 48, 3] * 2, "num_read": [0, 0]},
    "a token without an embedding": {"ids": IDS + 1},
    "no calibration": {"points": None},
    "a calibration of one point": {"num_points": 1},
    "ends that are nowhere": {"num_ends": 1},
    "less than no end": {"num_ends": -1},
    "other tokens that are nowhere": {"num_others": 1},
    "less than no other token": {"num_others": -1},
    "another token without an embedding": {"others": ODD_TABLE.buffer_info()[0], "num_others": 2},
    "less than no noisy token": {"num_noisy": -1},
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_without_room_or_beside_its_arrays_is_refused(name):
    with pytest.raises(ModelError, match="native code refuses follow"):
        follow(**CHAINS[name])


@pytest.mark.parametrize("kept", [-1, 3])
def test_more_outputs_than_tokens_are_refused(kept):
    with pytest.raises((ModelError, ValueError)):
        forward(tokens(), kept=kept)


SIZED = [
    {size: value}
    for size in ("hidden", "heads", "key_heads", "head_dim", "mlp")
    for value in (-1, 2**30 + 1, 2**31 - 1)
]
SIZED += [{"has_features": 1, "layers": 2}, {"has_features": 1, "num_cross": 1}]
SIZED += [{"layers": -1}, {"num_cross": -1}, {"key_heads": 0}, {"heads": 3, "key_heads": 2}]


@pytest.mark.parametrize("sizes", SIZED)
def test_sizes_that_no_model_has_or_that_do_not_go_together_make_none(sizes):
    with pytest.raises(ModelError, match="native code refuses model"):
        made(**sizes)


REFUSED = {
    "factors of more than a head": lambda: made().set_rotary(ones(4, 9), ones(4, 9)),
    "factors of no position": lambda: made().set_rotary(ones(0, 8), ones(0, 8)),
    "factors of a number far off": lambda: made().set_rotary(ones(4, 8), ones(4, 8), 3),
    "factors of two lengths": lambda: made().set_rotary(ones(4, 8), ones(3, 8)),
    "a layer too many": lambda: made().set_layer(1, []),
    "a layer below the first": lambda: made().set_layer(-1, []),
    "a window below nothing": lambda: made().set_layer(0, [], window=-1),
    "a block too many": lambda: made().set_layer(0, [BlockWeights(ones(32), [], matrix(32))] * 3),
    "hidden states of another width": lambda: filled().logits(ones(2, 31)),
    "logits without a head": lambda: made().logits(ones(2, 32)),
    "logits in another type": lambda: made().contenders(np.ones(4), 1.0, (1, 2)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_a_model_is_refused(name):
    with pytest.raises(ModelError):
        REFUSED[name]()


def test_blocks_are_written_into_as_much_memory_as_they_take():
    values, room = ones(64), np.zeros(68, np.uint8)
    places = (values.ctypes.data, room.ctypes.data)
    assert call("quantise", places[0], 64, places[1], 68) == 0
    own = matrix(4).as_matrix()
    out = ones(4, 32)
    assert call("dequantise", team(1), own, 0, out.ctypes.data, out.nbytes) == 0
    for name, arguments in {
        "quantise": [(places[0], 64, places[1], 67), (places[0], 63, places[1], 68)],
        "dequantise": [(team(1), own, at, out.ctypes.data, 511 + at) for at in (0, 1)],
    }.items():
        for odd in arguments:
            with pytest.raises(ModelError, match=f"native code refuses {name}"):
                call(name, *odd)

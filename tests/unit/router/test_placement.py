"""Laws of placement: who fits, who is least loaded, and who holds the keys."""

from types import SimpleNamespace

import pytest

from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.request import ModelFacts
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream_router.replicas.pool import chosen
from slipstream_router.replicas.probes import DescribedDraft, DescribedTarget, fits

LAYOUT = common_pb2.KvLayout(num_layers=30, num_kv_heads=3, head_dim=64, hidden_layers=[2])
NAMES = {"model_id": "small", "tokenizer_hash": "t" * 64, "vocab_size": 100}
NUMBERING = b"p" * 32 + b"is added"
TARGET = DescribedTarget(
    target_pb2.DescribeTargetResponse(identity={**NAMES, "numbering": NUMBERING}, layout=LAYOUT),
    ModelFacts("small", 100, 1000, frozenset()),
    None,
)


def draft(
    kind="glide", *, target_layout=LAYOUT, target_model_id="small", target_layers=(), **identity
):
    about = draft_pb2.DescribeDraftResponse(
        kind=kind,
        identity={**NAMES, **identity},
        target_layout=target_layout,
        target_model_id=target_model_id,
        target_layers=target_layers,
    )
    return DescribedDraft(about, DraftFacts(kind))


def replica(address, num_busy=0, last_began=0.0):
    return SimpleNamespace(address=address, num_busy=num_busy, last_began=last_began)


def address_of(replicas, sticky=None):
    found = chosen(replicas, sticky)
    return None if found is None else found.address


@pytest.mark.parametrize(
    ("replicas", "sticky", "address"),
    [
        ([], None, None),
        ([replica("a:1", 2), replica("b:1", 1)], None, "b:1"),
        ([replica("a:1", last_began=4.0), replica("b:1", last_began=3.0)], None, "b:1"),
        ([replica("a:1", 1000)], "a:1", "a:1"),
        ([replica("b:1")], "a:1", "b:1"),
    ],
    ids=["nobody", "the least loaded", "the longest idle", "keys of a full one", "keys that went"],
)
def test_a_replica_is_chosen_by_keys_and_load(replicas, sticky, address):
    assert address_of(replicas, sticky) == address


@pytest.mark.parametrize(("idlest", "most"), [(0, 8), (1, 10), (20, 48)])
def test_the_replica_with_the_keys_comes_first_until_it_is_crowded(idlest, most):
    for num_busy, address in ((most, "a:1"), (most + 1, "c:1")):
        replicas = [replica("a:1", num_busy), replica("b:1", idlest + 1), replica("c:1", idlest)]
        assert address_of(replicas, "a:1") == address


@pytest.mark.parametrize(
    "change",
    [
        {"target_model_id": "large"},
        {"tokenizer_hash": "u" * 64},
        {"target_layout": common_pb2.KvLayout(num_layers=30, num_kv_heads=3, head_dim=128)},
        {"vocab_size": 101},
        {"target_layers": [31]},
    ],
)
def test_a_draft_for_another_target_never_sits_with_this_one(change):
    assert fits(TARGET, draft()) and fits(TARGET, draft(target_layers=[32]))
    assert not fits(TARGET, draft(**change))


def test_what_a_draft_does_not_depend_on_is_not_compared():
    independent = {"target_model_id": "", "target_layout": None}
    assert fits(TARGET, draft("vanilla", **independent, vocab_size=128))
    assert fits(TARGET, draft("ngram", **independent, tokenizer_hash="", vocab_size=0))
    added = {"tokenizer_hash": "u" * 64, "numbering": NUMBERING[:32] + b"an other"}
    assert not fits(TARGET, draft("vanilla", **independent, **added))
    for more in (b"", NUMBERING[32:], bytes(8), NUMBERING[32:] + b"one more"):
        added["numbering"] = NUMBERING[:32] + more
        assert fits(TARGET, draft("vanilla", **independent, **added))

"""Choice of a request's replicas. Pure: views of the replicas go in, a choice comes out.

Least loaded first; among equals the one whose last request began longest ago, so that even one
request at a time is spread, and one that came late gets its share and no more. A replica that
still holds a session's keys comes before all others, unless it is crowded.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

KINDS = ("glide", "vanilla")
"""Kinds of drafts that live in replicas, the best first. N-gram lookup runs in the router."""
CROWD = 8
CROWD_FACTOR = 2
"""A replica is crowded that has so many requests more than so many times those of the idlest.

Then reading a session's tokens anew elsewhere beats waiting for so many others at every round, and
replicas that were added get sessions that go on, not only those that begin. A request that runs
leaves a crowded draft by the same rule.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape of keys and values, as far as a draft depends on it."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class TargetView:
    """A target replica that takes requests."""

    address: str
    model_id: str
    tokenizer_hash: str
    vocab_size: int
    layout: Layout
    num_requests: int = 0
    last_began: float = 0.0
    """Time of the last beginning of a request there, by any clock; 0 for never."""


@dataclass(frozen=True, slots=True)
class DraftView:
    """A draft replica that takes requests. What is empty or None, it does not depend on."""

    address: str
    kind: str
    tokenizer_hash: str = ""
    vocab_size: int = 0
    target_model_id: str = ""
    target_layout: Layout | None = None
    num_requests: int = 0
    last_began: float = 0.0
    """Time of the last beginning of a request there, by any clock; 0 for never."""


View = TypeVar("View", TargetView, DraftView)


def choose_target(
    targets: Iterable[TargetView],
    model_id: str,
    *,
    sticky: str | None = None,
    excluded: Collection[str] = (),
) -> TargetView | None:
    """The replica for a request; `sticky` is the address that may hold the session's keys."""
    fitting = [
        view for view in targets if view.model_id == model_id and view.address not in excluded
    ]
    return _chosen(fitting, sticky)


def choose_draft(
    drafts: Iterable[DraftView],
    target: TargetView,
    kind: str,
    *,
    sticky: str | None = None,
    excluded: Collection[str] = (),
) -> DraftView | None:
    """The replica of this kind that is to guess for the target; None when none fits."""
    fitting = [
        draft
        for draft in drafts
        if draft.kind == kind and draft.address not in excluded and not misfit(target, draft)
    ]
    return _chosen(fitting, sticky)


def best_kind(kinds: Collection[str]) -> str | None:
    """The best of the kinds that are there."""
    return next((kind for kind in KINDS if kind in kinds), None)


def misfit(target: TargetView, draft: DraftView) -> str:
    """Return why the draft can't guess for the target; empty when it can."""
    pairs = (
        ("target model", draft.target_model_id, target.model_id),
        ("tokenizer", draft.tokenizer_hash, target.tokenizer_hash),
        ("key and value layout", draft.target_layout, target.layout),
        ("vocabulary", draft.vocab_size if draft.kind == "glide" else 0, target.vocab_size),
    )
    for name, theirs, ours in pairs:
        if theirs and theirs != ours:
            return f"the draft's {name} is {theirs}, but the target's is {ours}"
    return ""


def _chosen(views: list[View], sticky: str | None) -> View | None:
    idlest = min(
        views, key=lambda view: (view.num_requests, view.last_began, view.address), default=None
    )
    for view in views:
        if view.address == sticky and idlest is not None and not _is_crowded(view, idlest):
            return view
    return idlest


def _is_crowded(view: View, idlest: View) -> bool:
    return view.num_requests > CROWD_FACTOR * idlest.num_requests + CROWD

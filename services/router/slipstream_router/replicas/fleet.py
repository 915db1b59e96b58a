"""All replicas of both roles: the models, and the choice of replicas for a request."""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from slipstream.core.breaker import Breakers
from slipstream.core.errors import (
    InvalidRequest,
    ModelNotFound,
    Unavailable,
    UnsupportedCombination,
)
from slipstream.core.policy.profile import NGRAM, DraftFacts
from slipstream.core.request.request import NO_DRAFTER
from slipstream.core.request.server_info import ReplicaInfo, ReplicaRole, ReplicaState
from slipstream.rpc.exchange import Peer
from slipstream_router.replicas.pool import Pool, chosen
from slipstream_router.replicas.probes import D, DescribedDraft, DescribedTarget, fits
from slipstream_router.replicas.replica import Replica

_LOG = logging.getLogger("slipstream.router")
NO_TARGET = "no target has been reached yet"
KINDS = ("glide", "eagle3", "vanilla")
"""Kinds of drafts that live in replicas, the best first. N-gram lookup runs in the router."""


class ChosenTarget:
    """A target replica chosen for a request, and what it was at that moment."""

    def __init__(self, replica: Replica[DescribedTarget], model: DescribedTarget) -> None:
        self.replica, self.model = replica, model
        self.epoch = replica.epoch
        """Epoch of the replica, which ends as soon as it is lost, even if it is back at once."""

    @property
    def peer(self) -> Peer:
        """Return how the replica is reached, until it is lost."""
        return replace(self.replica.peer, lost=partial(asyncio.shield, self.epoch))


@dataclass(eq=False)
class Fleet:
    """The replicas of one router."""

    targets: Pool[DescribedTarget]
    drafts: Pool[DescribedDraft]
    breakers: Breakers
    """Failures of all replicas that all requests know of, by address."""
    expects_drafts: bool
    drafter: str | None = None
    _reported: frozenset[str] = frozenset()
    """Models whose targets' weights differ, as the log has it."""

    @property
    def has_target(self) -> bool:
        """Return whether any request can run."""
        return bool(self.targets.ready())

    def infos(self) -> tuple[ReplicaInfo, ...]:
        """Every replica, by role and address; a ready one may rest after failures."""
        everyone = [replica.info for replica in (*self.drafts, *self.targets)]
        return tuple(
            replace(
                info, reason=info.reason or self.breakers.reason(info.address) or self._note(info)
            )
            for info in sorted(everyone, key=lambda info: (info.role.value, info.address))
        )

    def check_weights(self) -> None:
        """Log once for every model whose ready targets have different weights."""
        mixed = self._mixed()
        for model_id in sorted(mixed - self._reported):
            _LOG.warning(
                "targets of model %s have different weights: a request that loses its target goes"
                " on only where the weights are equal",
                model_id,
            )
        self._reported = mixed

    def _mixed(self) -> frozenset[str]:
        ready = _described(self.targets.ready())
        known = {(model.name, model.weights_digest) for _, model in ready}
        counts = Counter(name for name, _ in known)
        return frozenset(name for name, count in counts.items() if count > 1)

    def _note(self, info: ReplicaInfo) -> str:
        is_mixed = info.role is ReplicaRole.TARGET and info.model in self._mixed()
        return "other targets of its model have other weights" if is_mixed else ""

    def models(self) -> dict[str, ChosenTarget]:
        """A replica of every model: of all targets that were ever reached and are still listed."""
        found: dict[str, ChosenTarget] = {}
        known = _described(self.targets)
        for replica, model in sorted(known, key=lambda pair: pair[0].state is ReplicaState.READY):
            found[model.name] = ChosenTarget(replica, model)  # ready ones stay
        return found

    def context_length(self) -> int:
        """Tokens of the longest context of all models. Raises `Unavailable` without any model."""
        lengths = [target.model.facts.context_length for target in self.models().values()]
        if not lengths:
            raise Unavailable(NO_TARGET)
        return max(lengths)

    def num_targets(self, model_id: str) -> int:
        return sum(model.name == model_id for _, model in _described(self.targets.ready()))

    def model_name(self, asked: str) -> str:
        """The model that is meant; an empty name means the only one.

        Raises `ModelNotFound`, `InvalidRequest` where there are several, `Unavailable` where no
        target was reached.
        """
        names = sorted(self.models())
        if not names:
            raise Unavailable(NO_TARGET)
        if asked in names:
            return asked
        listing = ", ".join(names)
        if asked:
            raise ModelNotFound(f"there is no model {asked!r} here, but {listing}")
        if len(names) > 1:
            raise InvalidRequest(f"the request names no model, but there are several: {listing}")
        return names[0]

    def target(
        self,
        model_id: str,
        *,
        tokenizer_hash: str | None = None,
        arithmetic: str | None = None,
        sticky: str | None = None,
        excluded: Collection[str] = (),
    ) -> ChosenTarget:
        """The replica that is to verify, no `excluded` one, `sticky` being the last one's address.

        For `arithmetic` see `DescribedTarget`. None is any. Raises `Unavailable` without a replica.
        """
        ready = _described(self.targets.ready())
        alike = [pair for pair in ready if tokenizer_hash in (None, pair[1].tokenizer_hash)]
        admitted = [pair for pair in alike if arithmetic in (None, pair[1].arithmetic)]
        found = _chosen([it for it in admitted if it[1].name == model_id], sticky, excluded)
        if found is not None:
            return ChosenTarget(*found)
        why = f"no target for model {model_id} is ready"
        if ready and not admitted and arithmetic:
            why += " with the weights, element type and numerics that the request began with:"
            why += f" {arithmetic}"
        raise Unavailable(why)

    def draft(
        self, target: ChosenTarget, kind: str, *, sticky: str | None, excluded: Collection[str]
    ) -> tuple[Replica[DescribedDraft], DescribedDraft] | None:
        """The replica that is to guess for the target; None when there is none."""
        ready = _described(self.drafts.ready())
        fitting = [pair for pair in ready if pair[1].name == kind and fits(target.model, pair[1])]
        return _chosen(fitting, sticky, excluded)

    def relieve(
        self, address: str, target: ChosenTarget, kind: str, *, excluded: Collection[str]
    ) -> bool:
        """Return whether a request is to leave the draft at the address, because it is crowded.

        One request leaves between two reports of the draft's load, so that several routers see
        what each of them moves, and the next draft reads one text after the other.
        """
        crowded = self.draft_at(address)
        if crowded is None or crowded.load is crowded.relieved:
            return False
        others = [other for other in excluded if other != address]
        better = self.draft(target, kind, sticky=address, excluded=others)
        if better is None or better[0] is crowded:
            return False
        crowded.relieved = crowded.load
        return True

    def draft_facts(self, target: ChosenTarget, asked: str | None) -> DraftFacts:
        """Return the facts of a target's draft for a request: one of the kind asked, or the best.

        A draft that is lost for the moment still counts, by its last description. Raises
        `UnsupportedCombination` when there are drafts, but none of this kind.
        """
        kind = asked or self.drafter
        if kind == NO_DRAFTER:
            return DraftFacts(NO_DRAFTER)
        if kind == NGRAM.kind:
            return NGRAM
        known = self.drafts_for(target)
        chosen = kind or _best(known)
        for model, _ in known:
            if model.name == chosen:
                return replace(model.facts, ways=target.replica.ways)
        return self._unknown_draft(kind, {model.name for model, _ in known})

    def _unknown_draft(self, kind: str | None, here: set[str]) -> DraftFacts:
        """Facts of a draft without a description; it may still come where drafts are listed."""
        expects = self.expects_drafts
        if kind is None:
            return DraftFacts(KINDS[0]) if expects else NGRAM
        if here or not expects:
            listing = ", ".join(sorted({*here, NGRAM.kind}))
            raise UnsupportedCombination(f"drafter {kind} is not here, but {listing}")
        return DraftFacts(kind)

    def drafts_for(self, target: ChosenTarget) -> list[tuple[DescribedDraft, bool]]:
        """Drafts that fit the target, ready ones first, each with whether it is ready."""
        found = [
            (model, replica.state is ReplicaState.READY)
            for replica, model in _described(self.drafts)
            if replica.state is not ReplicaState.UNFIT and fits(target.model, model)
        ]
        return sorted(found, key=lambda pair: not pair[1])

    def at(self, address: str | None) -> ChosenTarget | None:
        """The ready target at an address."""
        ready = _described(self.targets.ready())
        return next((ChosenTarget(*pair) for pair in ready if pair[0].address == address), None)

    def draft_at(self, address: str | None) -> Replica[DescribedDraft] | None:
        """The ready draft at an address."""
        return next(
            (replica for replica in self.drafts.ready() if replica.address == address), None
        )


def _described(replicas: Iterable[Replica[D]]) -> list[tuple[Replica[D], D]]:
    return [(replica, replica.described) for replica in replicas if replica.described is not None]


def _chosen(
    pairs: Sequence[tuple[Replica[D], D]], sticky: str | None, excluded: Collection[str]
) -> tuple[Replica[D], D] | None:
    fitting = {pair[0].address: pair for pair in pairs if pair[0].address not in excluded}
    replica = chosen([pair[0] for pair in fitting.values()], sticky)
    return None if replica is None else fitting[replica.address]


def _best(known: Sequence[tuple[DescribedDraft, bool]]) -> str | None:
    ready = {model.name for model, is_ready in known if is_ready}
    kinds = ready or {model.name for model, _ in known}
    return next((kind for kind in KINDS if kind in kinds), None)

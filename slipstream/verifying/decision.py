"""Decisions of a forward: how far each proposal is right, by tokens drawn or by logits.

Requests that `core.verify.draws` allows draw their tokens where the logits are; all others bring
their logits. The rows of a request that is decided are its last pending token and its nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import SlipstreamError
from slipstream.core.tree import EMPTY, ROOT, TokenTree
from slipstream.core.types import Session
from slipstream.core.verify.distribution import Constraint, Edits, Paths, distribution_of
from slipstream.core.verify.draws import FindContenders, draw_keys, fits_device, walk_drawn
from slipstream.core.verify.likelihood import token_logprob
from slipstream.core.verify.noise import Floats, Ids
from slipstream.core.verify.verify import verify
from slipstream.core.verify.walk import Walk
from slipstream.models.causal import CausalModel
from slipstream.models.kv.batch import Draw, Mask, Part
from slipstream.models.scorer import on_host
from slipstream.verifying.request import ScheduledRequest, TargetRequest

Decision = Callable[[], Walk]
"""Function that decides a request; it raises what `core.verify.verify` does."""
Batch = Sequence[ScheduledRequest]
Slots = tuple[tuple[int, ...], ...]
"""KV slots of a forward's tokens, request by request."""

_LOGIT_ROWS = 32
"""Rows whose logits are held at once."""

assert ROOT == -1, "row 0 of the logits is the root's"


def forward(model: CausalModel, batch: Batch) -> tuple[Slots, list[Decision]]:
    """Compute a batch; return its slots, and the decision of each request that it decides."""
    parts = [_part(entry) for entry in batch]
    ends = accumulate(entry.num_tokens for entry in batch)
    each = zip(batch, ends, strict=True)
    decided = [(entry.request, end) for entry, end in each if entry.is_last]
    if not (model.draws_on_device and any(fits_device(request.session) for request, _ in decided)):
        hidden, slots = model.forward(parts)
        _add_prompt_logprobs(model, hidden, batch)
        return slots, _by_logits(model, hidden, decided)
    by_request: list[list[Draw]] = []

    def draws() -> Iterator[Draw]:
        """Yield the draws of all, made while the device computes. A request has none where logits
        decide, or where its grammar can't be followed to each node: what a walk does not reach is
        no error."""
        for request, end in decided:
            by_request.append(_draws(request, end))
            yield from by_request[-1]

    hidden, slots, drawn = model.draw(parts, draws())
    _add_prompt_logprobs(model, hidden, batch)
    both = list(zip(decided, by_request, strict=True))
    by_logits = iter(_by_logits(model, hidden, [one for one, own in both if not own]))
    tokens = iter(drawn)
    decisions = [
        partial(walk_drawn, request.proposal.tree, list(islice(tokens, len(own))))
        if own
        else next(by_logits)
        for (request, _), own in both
    ]
    return slots, decisions


def _add_prompt_logprobs(model: CausalModel, hidden: Any, batch: Batch) -> None:
    """Add log-probabilities of prompts to the requests that return them, by rows of `hidden`."""
    first = 0
    for entry in batch:
        request, session = entry.request, entry.request.session
        begin, end = request.cache.count, session.num_prompt_tokens - 1
        if session.has_prompt_logprobs and session.num_logprobs is not None:
            rows = range(begin, min(begin + entry.num_pending, end))
            for start in range(rows.start, rows.stop, _LOGIT_ROWS):
                block = rows[start - begin : start - begin + _LOGIT_ROWS]
                logits = on_host(model.logits(hidden[[first + row - begin for row in block]]))
                request.prompt_logprobs += [
                    token_logprob(logits[index], request.tokens[row + 1], session.num_logprobs)
                    for index, row in enumerate(block)
                ]
        first += entry.num_tokens


def _by_logits(
    model: CausalModel, hidden: Any, decided: Sequence[tuple[TargetRequest, int]]
) -> list[Decision]:
    """Return decisions by the logits of each request's rows, which end at `end` of `hidden`."""
    rows = [row for request, end in decided for row in range(end - 1 - request.num_nodes, end)]
    if not rows:
        return []
    logits = on_host(model.logits(hidden if len(rows) == len(hidden) else hidden[rows]))
    stops = accumulate(1 + request.num_nodes for request, _ in decided)
    return [
        partial(_verify, request, logits[stop - 1 - request.num_nodes : stop], model.contenders)
        for (request, _), stop in zip(decided, stops, strict=True)
    ]


def _verify(request: TargetRequest, logits: Floats, find: FindContenders | None) -> Walk:
    """Verify by logits [1 + nodes, vocab] after the last final token and after every node."""
    return verify(
        request.session,
        request.tokens,
        request.proposal,
        lambda node: logits[node + 1],
        constraint=request.held.constraint,
        find=find,
    )


def _part(entry: ScheduledRequest) -> Part:
    request, start = entry.request, entry.request.cache.count
    tree = request.proposal.tree if entry.is_last else EMPTY
    return Part(request.cache, request.tokens[start : start + entry.num_pending], tree)


def _draws(request: TargetRequest, end: int) -> list[Draw]:
    tree, first = request.proposal.tree, end - 1 - request.num_nodes
    with suppress(SlipstreamError):
        if fits_device(request.session):
            constraint = request.held.constraint
            return draws_of(request.session, request.tokens, tree, first, constraint)
    return []


def draws_of(
    session: Session,
    prefix: Sequence[int],
    tree: TokenTree,
    first: int = 0,
    constraint: Constraint | None = None,
) -> list[Draw]:
    """Return the draws behind a prefix, whose last token is input `first`, and behind each node.

    Raises what `Constraint.allowed` does.
    """
    sampling, depths = session.sampling, (0, *tree.depths())
    nodes = range(len(tree) if constraint or sampling.depends_on_prefix else 0)
    paths = [[tree.tokens[step] for step in tree.path(node)] for node in nodes]
    edits: list[tuple[Edits, ...]] = [()] * len(depths)
    if sampling.logit_bias or sampling.depends_on_prefix:
        below = paths if sampling.depends_on_prefix else ()
        base, *others = distribution_of(session, None).edits(prefix, below)
        edits = [(base,)] * len(depths)
        edits[1 : 1 + len(others)] = [(base, own) for own in others]
    masks: list[Mask | None] = [None] * len(depths)
    if constraint is not None:
        masks = _masks(constraint, prefix[session.num_prompt_tokens :], tree, paths)
    keys = [draw_keys(sampling, len(prefix) + depth) for depth in depths]
    return [
        Draw(first + row, sampling, own, edits[row], masks[row]) for row, own in enumerate(keys)
    ]


def _masks(
    constraint: Constraint, output: Sequence[int], tree: TokenTree, paths: Paths
) -> list[Mask | None]:
    """Return the mask of what may follow an output, and each node; of nothing at nodes that no walk
    reaches."""
    flags: list[NDArray[np.bool_] | None] = []
    for parent, path in zip((None, *tree.parents), ((), *paths), strict=True):
        above = None if parent is None else flags[parent + 1]
        ids: Ids | None = np.zeros(0, np.int64)
        if above is None or (path[-1] < len(above) and above[path[-1]]):
            ids = constraint.allowed([*output, *path])
        flags.append(None if ids is None else np.bincount(ids) > 0)
    return [None if own is None else np.packbits(own, bitorder="little") for own in flags]

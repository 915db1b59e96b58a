"""Decisions of a forward: how far each proposal is right, by tokens drawn or by logits.

Requests that `core.verify.draws` allows draw their tokens where the logits are; all others bring
their logits. The rows of a request that is decided are its last pending token and its nodes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from slipstream.core.tree import EMPTY, ROOT, TokenTree
from slipstream.core.types import Session
from slipstream.core.verify.distribution import Edits, distribution_of
from slipstream.core.verify.draws import FindContenders, draw_keys, fits_device, walk_drawn
from slipstream.core.verify.likelihood import token_logprob
from slipstream.core.verify.noise import Floats
from slipstream.core.verify.verify import verify
from slipstream.core.verify.walk import Walk
from slipstream.models.causal import CausalModel
from slipstream.models.kv.batch import Draw, Part
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
    decided = [
        (entry.request, end) for entry, end in zip(batch, ends, strict=True) if entry.is_last
    ]
    draws = list[Draw]()
    if model.draws_on_device:
        for request, end in decided:
            if _is_drawn(request):
                tree, first = request.proposal.tree, end - 1 - request.num_nodes
                draws += draws_of(request.session, request.tokens, tree, first)
    if not draws:
        hidden, slots = model.forward(parts)
        _add_prompt_logprobs(model, hidden, batch)
        return slots, _by_logits(model, hidden, decided)
    drawn = model.draw(parts, draws)
    _add_prompt_logprobs(model, drawn.hidden, batch)
    others = [(request, end) for request, end in decided if not _is_drawn(request)]
    by_logits = iter(_by_logits(model, drawn.hidden, others))
    decisions, start = list[Decision](), 0
    for request, _ in decided:
        if _is_drawn(request):
            stop = start + 1 + request.num_nodes
            tree, tokens = request.proposal.tree, drawn.tokens[start:stop]
            decisions.append(partial(walk_drawn, tree, tokens))
            start = stop
        else:
            decisions.append(next(by_logits))
    return drawn.places, decisions


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


def _is_drawn(request: TargetRequest) -> bool:
    return fits_device(request.session)


def draws_of(session: Session, prefix: Sequence[int], tree: TokenTree, first: int) -> list[Draw]:
    """Return the draws behind a prefix, whose last token is input `first`, and behind each node."""
    sampling, depths = session.sampling, (0, *tree.depths())
    edits: list[tuple[Edits, ...]] = [()] * len(depths)
    if sampling.logit_bias or sampling.depends_on_prefix:
        nodes = range(len(tree) if sampling.depends_on_prefix else 0)
        paths = ([tree.tokens[step] for step in tree.path(node)] for node in nodes)
        base, *others = distribution_of(session, None).edits(prefix, paths)
        edits = [(base,)] * len(depths)
        edits[1 : 1 + len(others)] = [(base, own) for own in others]
    return [
        Draw(first + row, sampling, draw_keys(sampling, len(prefix) + depth), edits[row])
        for row, depth in enumerate(depths)
    ]

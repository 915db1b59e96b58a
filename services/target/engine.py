"""The target as an engine: sessions, their caches, and verification. Knows no wire."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from slipstream.core.errors import CapacityError, InvalidRequest, PromptTooLong
from slipstream.core.finish import finish
from slipstream.core.history import apply_delta
from slipstream.core.proposal_check import check_proposal
from slipstream.core.request import check_logit_bias
from slipstream.core.tree import ROOT
from slipstream.core.types import Delta, FinishReason, Proposal, Session, Verdict
from slipstream.core.verify import verify
from slipstream.core.walk import Walk
from slipstream.models.cache import KvCache
from slipstream.models.causal import CausalModel
from slipstream.models.rows import Rows
from slipstream.models.scorer import KvView

_LAST_CHUNK = 256
"""Pending tokens that are processed together with the tree; what is before is prefilled."""


@dataclass(slots=True)
class _Held:
    """A session as the engine holds it: its final tokens, and keys of at most all but one."""

    tokens: list[int]
    cache: KvCache
    roots: tuple[int, ...] = ()
    """Target-initialised roots of the slot after the tokens."""


class LocalTarget:
    """`core.ports.Target` over a model in this process."""

    def __init__(self, model: CausalModel, *, free_rows: int, max_sessions: int = 64) -> None:
        """`free_rows` is how many rows the model verifies at about the cost of one."""
        self._model = model
        self._free_rows = free_rows
        self._max_sessions = max_sessions
        self._held: dict[str, _Held] = {}

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`."""
        self._check(session, delta)
        held = self._open(session, delta)
        self._update(held, session.session_id, delta)
        check_proposal(session, proposal, vocab_size=self._model.vocab_size, roots=held.roots)
        num_cached = held.cache.count
        logits, rows, num_pending = self._forward(held, proposal)
        walk = verify(
            session,
            held.tokens,
            proposal,
            lambda node: logits[node + 1].float(),
            roots=held.roots,
        )
        final, reason = self._settle(held, session, walk, proposal, (rows, num_pending))
        num_accepted = min(len(walk.nodes), len(final))
        return Verdict(final, num_accepted, reason, held.roots, self._free_rows, num_cached)

    async def release(self, session_id: str) -> None:
        """See `core.ports.Target.release`."""
        self._held.pop(session_id, None)

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """The keys and values of a session's final tokens, without a copy."""
        return self._held[session_id].cache.view(layers)

    def _check(self, session: Session, delta: Delta) -> None:
        limit = self._model.context_length
        if session.num_prompt_tokens + session.max_tokens > limit:
            raise PromptTooLong(
                f"a prompt of {session.num_prompt_tokens} tokens and up to {session.max_tokens}"
                f" new ones exceed the context of {limit} tokens"
            )
        size = self._model.vocab_size
        check_logit_bias(session.sampling, size)
        for token in delta.tokens:
            if not 0 <= token < size:
                raise InvalidRequest(f"token id {token} is outside the vocabulary of {size}")

    def _open(self, session: Session, delta: Delta) -> _Held:
        held = self._held.get(session.session_id)
        if held is not None:
            return held
        apply_delta([], delta)
        if len(self._held) >= self._max_sessions:
            raise CapacityError(f"{len(self._held)} sessions are open, the limit")
        held = _Held([], self._model.open(session.num_prompt_tokens + session.max_tokens))
        self._held[session.session_id] = held
        return held

    def _update(self, held: _Held, session_id: str, delta: Delta) -> None:
        before = held.tokens
        held.tokens, num_same = apply_delta(before, delta)
        if held.tokens != before:
            held.roots = ()
        if not held.tokens:
            del self._held[session_id]
            raise InvalidRequest("a session needs at least one token before it can go on")
        # The last token is always processed again: its row says what comes next.
        held.cache.truncate(min(num_same, len(held.tokens) - 1))

    def _forward(self, held: _Held, proposal: Proposal) -> tuple[Tensor, Rows, int]:
        """Logits [1 + nodes, vocab] after the last final token and after every node."""
        pending = held.tokens[held.cache.count :]
        num_last = min(len(pending), _LAST_CHUNK)
        self._model.prefill(held.cache, pending[:-num_last])
        hidden, rows = self._model.forward(held.cache, pending[-num_last:], proposal.tree)
        return self._model.logits(hidden[num_last - 1 :]), rows, num_last

    def _settle(
        self,
        held: _Held,
        session: Session,
        walk: Walk,
        proposal: Proposal,
        place: tuple[Rows, int],
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        rows, num_pending = place
        tokens = [proposal.tree.tokens[node] for node in walk.nodes]
        if walk.token is not None:
            tokens.append(walk.token)
        num_output = len(held.tokens) - session.num_prompt_tokens
        final, reason = finish(session, num_output, tokens)
        accepted = walk.nodes[: len(final)]
        slots = rows.slot_list[:num_pending]
        held.cache.keep([*slots, *(rows.slot_list[num_pending + node] for node in accepted)])
        held.tokens += final
        held.roots = walk.roots if reason is None else ()
        return final, reason


assert ROOT == -1, "row 0 of the logits is the root's"

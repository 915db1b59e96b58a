"""The target as an engine: sessions, their caches, and verification. Knows no wire."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from torch import Tensor

from slipstream.core.errors import CapacityError, SessionNotFound
from slipstream.core.finish import finish
from slipstream.core.history import apply_delta
from slipstream.core.proposal_check import check_proposal
from slipstream.core.tree import ROOT
from slipstream.core.types import Delta, FinishReason, Proposal, Session, Verdict
from slipstream.core.verify import verify
from slipstream.core.walk import Walk
from slipstream.models.cache import KvCache, KvLayout
from slipstream.models.causal import CausalModel
from slipstream.models.rows import Rows
from slipstream.models.scorer import KvView
from slipstream.target.admission import check_call, check_length
from slipstream.target.taps import KvTap

_LAST_CHUNK = 256
"""Pending tokens that are processed together with the tree; what is before is prefilled."""


@dataclass(slots=True)
class _Held:
    """A session as the engine holds it: its final tokens, and keys of at most all but one."""

    tokens: list[int]
    cache: KvCache
    roots: tuple[int, ...] = ()
    """Target-initialised roots of the slot after the tokens."""
    taps: WeakSet[KvTap] = field(default_factory=WeakSet)
    """Readers of the cache elsewhere."""


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
        check_call(
            session,
            delta,
            proposal,
            vocab_size=self._model.vocab_size,
            context_length=self._model.context_length,
        )
        held = self._take_in(session, delta, proposal)
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
        held = self._held.pop(session_id, None)
        for tap in held.taps if held else ():
            tap.end()

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """The keys and values of a session's final tokens, without a copy."""
        return self._held[session_id].cache.view(layers)

    @property
    def layout(self) -> KvLayout:
        """Shape of a session's keys and values."""
        return self._model.layout

    def tap(self, session_id: str, layers: Sequence[int], start: int) -> KvTap:
        """Read a session's keys and values slice by slice, from a position on.

        Raises `SessionNotFound`, and whatever `KvTap` refuses. The tap ends with the session, and
        the engine forgets it when nobody holds it any more.
        """
        held = self._held.get(session_id)
        if held is None:
            raise SessionNotFound(f"no session {session_id} is held")
        tap = KvTap(held.cache, layers, start)
        held.taps.add(tap)
        return tap

    def kv_bytes(self, session_id: str) -> int:
        """Bytes of keys and values that a session holds; 0 for an unknown one. Any thread."""
        held = self._held.get(session_id)
        return held.cache.num_bytes if held else 0

    @property
    def num_kv_bytes(self) -> int:
        """Bytes of keys and values of all sessions. Any thread may ask."""
        return sum(held.cache.num_bytes for held in list(self._held.values()))

    def _take_in(self, session: Session, delta: Delta, proposal: Proposal) -> _Held:
        """The session with the delta applied. What is refused, changes nothing."""
        held = self._held.get(session.session_id)
        before = held.tokens if held else []
        tokens, num_same = apply_delta(before, delta)
        check_length(session, len(tokens))
        roots = held.roots if held and tokens == before else ()
        check_proposal(session, proposal, vocab_size=self._model.vocab_size, roots=roots)
        held = held or self._open(session)
        held.tokens, held.roots = tokens, roots
        # The last token is always processed again: its row says what comes next.
        held.cache.truncate(min(num_same, len(tokens) - 1))
        for tap in held.taps:
            tap.lower(held.cache.count)
        return held

    def _open(self, session: Session) -> _Held:
        if len(self._held) >= self._max_sessions:
            raise CapacityError(f"{len(self._held)} sessions are open, the limit")
        held = _Held([], self._model.open(session.num_prompt_tokens + session.max_tokens))
        self._held[session.session_id] = held
        return held

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

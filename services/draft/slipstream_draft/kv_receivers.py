"""Keys and values of every session, from its target, and the wait for them before a proposal.

`KvReceivers` has a receiver for each session (`kv_receiver.py`); `KvCatchUp` waits for the newest.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from slipstream.core.errors import HandshakeError, InvalidRequest, NoRoom
from slipstream.core.sequence import TokenSequence
from slipstream.drafting.build import Drafter
from slipstream.drafting.engine import LocalDraft
from slipstream.drafting.kv_mirror import ByteBudget, KvMirror
from slipstream.models.dtypes import CPU
from slipstream.models.kv.cache import view_layout
from slipstream.models.kv.pool import KvLayout
from slipstream.models.scorer import KvView, skippable
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.conversion.convert_common import value_from_pb
from slipstream.rpc.kv import DTYPE, KvEncoding, KvFormat, element_type, keep_freed_memory
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream_draft.config import DraftConfig
from slipstream_draft.kv_receiver import KvAddress, KvReceiver, Propose
from slipstream_draft.kv_sources import Channels, KvSources


class KvReceivers:
    """`draft.engine.KvSource` over streams from targets. `view` may be called from any thread."""

    def __init__(
        self, options: ChannelOptions, device: str, sources: KvSources | None = None
    ) -> None:
        """`options` are those of channels to targets; `device` is that of the draft; `sources` are
        the allowed targets, by default those of this machine."""
        keep_freed_memory()
        self.channels = Channels(options)
        """Channels to targets."""
        self._sources = sources or KvSources()
        self._device = device
        self._receivers: dict[str, KvReceiver] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._num_bytes_before = 0
        self.proposers: dict[str, Propose] = {}
        """Answers to the targets of sessions that are read, by session: set before `follow`."""
        self.budget = ByteBudget(make_room=self._make_room)
        """Budget of all mirrors: those of parked sessions give way."""

    @property
    def num_reading(self) -> int:
        """Number of sessions that are kept up to date."""
        return sum(receiver.is_reading for receiver in self._receivers.values())

    @property
    def num_received_bytes(self) -> int:
        """Bytes of keys and values that were received, of sessions that are gone too."""
        received = (receiver.num_received_bytes for receiver in self._receivers.values())
        return self._num_bytes_before + sum(received)

    def kv_bytes(self, session_id: str) -> int:
        """Return the bytes of a session's keys and values."""
        receiver = self._receivers.get(session_id)
        return 0 if receiver is None else receiver.mirror.num_bytes

    @property
    def num_kv_bytes(self) -> int:
        """Bytes of the keys and values of all sessions."""
        return sum(receiver.mirror.num_bytes for receiver in self._receivers.values())

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """See `KvSource.view`; the layers are those of the session's form."""
        receiver = self._receivers.get(session_id)
        return KvView(0, {}) if receiver is None else receiver.mirror.view()

    def follow(
        self,
        sequence: TokenSequence,
        source: KvAddress,
        form: KvFormat,
        *,
        num_same: Callable[[], int],
        skipped: range = range(1),
    ) -> bool:
        """Keep a session up to date from there; return whether a stream starts for it.

        `num_same` returns how many leading tokens of the sequence the engine has already; `skipped`
        is as in `KvReceiver.follow`. Raises what `KvSources.check` does.
        """
        session = sequence.session
        receiver = self._receivers.get(session.session_id)
        if receiver is not None and receiver.source == source and receiver.is_reading:
            return False
        self._sources.check(source.address)
        if receiver is None or receiver.form != form:
            self.close(session.session_id)
            receiver = self._receivers[session.session_id] = self._receiver(form)
        receiver.mirror.limit = session.num_prompt_tokens + session.max_tokens
        propose = self.proposers.get(session.session_id)
        if not receiver.follow(source, propose, num_same=num_same(), skipped=skipped):
            return False
        with suppress(NoRoom):  # the reader raises it again, and tries again
            receiver.mirror.reserve(len(sequence))
        return True

    async def wait(self, session_id: str, count: int, timeout_s: float) -> bool:
        """Wait until `count` positions are there, if they come in time. False without a wait."""
        receiver = self._receivers.get(session_id)
        if receiver is None or receiver.mirror.count >= count:
            return False
        await receiver.wait(count, timeout_s)
        return True

    def park(self, session_id: str) -> None:
        """Stop reading between two turns; what was read stays."""
        self.proposers.pop(session_id, None)
        receiver = self._receivers.pop(session_id, None)
        if receiver is not None:
            self._receivers[session_id] = receiver  # the last one to give way
            receiver.park()

    def close(self, session_id: str) -> asyncio.Task[None] | None:
        """Forget a session at once; return its reader, if any, to be waited for."""
        receiver = self._receivers.pop(session_id, None)
        if receiver is None:
            return None
        self._num_bytes_before += receiver.num_received_bytes
        reader = receiver.cancel()
        receiver.mirror.free()
        return reader

    async def aclose(self) -> None:
        """End every reader and close every channel."""
        for session_id in list(self._receivers):
            self.close(session_id)
        while self._readers:
            await asyncio.wait(self._readers)
        await self.channels.close()

    def _make_room(self, num_bytes: int) -> None:
        """Free parked sessions' mirrors, the longest parked first, as far as needed."""
        for receiver in self._receivers.values():
            if self.budget.has(num_bytes):
                return
            if not receiver.is_reading:
                receiver.mirror.free()

    def _receiver(self, form: KvFormat) -> KvReceiver:
        dtype = element_type(form.dtype)
        layout = KvLayout(len(form.layers), form.num_kv_heads, form.head_dim, dtype, self._device)

        def new_mirror(limit: int) -> KvMirror:
            return KvMirror(form.layers, layout, limit=limit, budget=self.budget)

        return KvReceiver(self.channels, self._readers, new_mirror, form)


class KvCatchUp:
    """The wait of a proposal for keys and values to read, as far as they come in time."""

    def __init__(self, drafter: Drafter, receivers: KvReceivers, config: DraftConfig) -> None:
        self._local = drafter.draft if isinstance(drafter.draft, LocalDraft) else None
        self._layers = drafter.layers
        self._max_lag = drafter.facts.max_lag
        self._receivers = receivers
        self._config = config

    def form(self, layout: common_pb2.KvLayout) -> KvFormat | None:
        """Return the format of a target with this layout; None for a draft that reads none. Raises
        `HandshakeError` without a type, what `view_layout` does for layers."""
        if not self._layers:
            return None
        dtype = DTYPE.from_pb(layout.dtype)
        if dtype is None:
            raise HandshakeError("the caller says nothing of the dtype of keys and values")
        whole = value_from_pb(KvLayout, layout, dtype=element_type(dtype), device=CPU)
        own, encoding = view_layout(whole, self._layers), KvEncoding(self._config.kv_encoding)
        return KvFormat(self._layers, own.num_kv_heads, own.head_dim, dtype, encoding)

    async def ready(
        self, sequence: TokenSequence, form: KvFormat | None, plan: draft_pb2.Plan
    ) -> bool:
        """Read from the plan's feed, and wait for the newest; return whether there was a wait.

        Raises `InvalidRequest` for a feed that is missing, or one too many.
        """
        session_id, config, has_waited = sequence.session_id, self._config, False
        if self._follow(sequence, form, plan) and self._max_lag is not None:
            # A lost round costs more than the first keys that are new enough do.
            count = len(sequence) - self._max_lag
            has_waited = await self._receivers.wait(session_id, count, config.kv_catch_up_ms / 1000)
        count = len(sequence) - 1
        wait_s = config.kv_wait_ms / 1000
        return await self._receivers.wait(session_id, count, wait_s) or has_waited

    def _follow(self, sequence: TokenSequence, form: KvFormat | None, plan: draft_pb2.Plan) -> bool:
        """Read keys and values from the plan's feed; return whether a stream starts."""
        if form is None or self._local is None:
            if plan.HasField("feed"):
                raise InvalidRequest("the plan names a feed, but this draft reads none")
            return False
        if not plan.HasField("feed"):
            layers = ", ".join(map(str, form.layers))
            raise InvalidRequest(f"the draft reads target layers {layers}: the plan needs a feed")
        num_same = partial(self._local.num_same, sequence)
        feed = plan.feed
        if not (feed.session_id and feed.incarnation):
            raise InvalidRequest("the plan's feed lacks the session or the process to read from")
        source = value_from_pb(KvAddress, feed)
        skipped = skippable(len(sequence), self._config.num_newest)
        return self._receivers.follow(sequence, source, form, num_same=num_same, skipped=skipped)

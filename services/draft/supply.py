"""A request's keys and values: in which form, read from where, and how long they are waited for.

Knows what routers say of a feed; how it is read is `feeds.py`'s.
"""

from slipstream.core.errors import HandshakeError, InvalidRequest
from slipstream.core.sequence import TokenSequence
from slipstream.draft.build import Drafter
from slipstream.draft.engine import LocalDraft
from slipstream.draft.feed import FeedAddress
from slipstream.draft.feeds import FeedNeed, KvFeeds
from slipstream.rpc.kv import DTYPE, KvEncoding, KvFormat, KvStreamSource
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream.telemetry.spans import Reply


class KvSupply:
    """Sees to it that a proposal has keys and values to read, as far as they are there in time."""

    def __init__(
        self,
        drafter: Drafter,
        feeds: KvFeeds,
        *,
        wait_s: float,
        catch_up_s: float,
        encoding: KvEncoding,
    ) -> None:
        """`wait_s` is the longest wait for the newest ones, `catch_up_s` that for those without
        which a new feed is no use."""
        self._local = drafter.draft if isinstance(drafter.draft, LocalDraft) else None
        self._layers = drafter.layers
        self._max_lag = drafter.facts.max_lag
        self._feeds = feeds
        self._wait_s = wait_s
        self._catch_up_s = catch_up_s
        self._encoding = encoding

    def form(self, layout: common_pb2.KvLayout) -> KvFormat | None:
        """How a target with this layout is read; None for a draft that reads none."""
        if not self._layers:
            return None
        dtype = DTYPE.from_pb(layout.dtype)
        if dtype is None:
            raise HandshakeError("the caller says nothing of the dtype of keys and values")
        return KvFormat(self._layers, layout.num_kv_heads, layout.head_dim, dtype, self._encoding)

    async def ready(
        self,
        sequence: TokenSequence,
        form: KvFormat | None,
        plan: draft_pb2.Plan,
        *,
        begun_by: Reply | None,
    ) -> bool:
        """Read from where the plan says; whether anything had to be waited for.

        A feed that begins with it is part of `begun_by`. Raises `InvalidRequest` for a feed that
        is missing, or one too many.
        """
        session_id, has_waited = sequence.session_id, False
        if self._follow(sequence, form, plan, begun_by) and self._max_lag is not None:
            # A lost round costs more than the first keys that are new enough do.
            count = len(sequence) - self._max_lag
            has_waited = await self._feeds.wait(session_id, count, self._catch_up_s)
        return await self._feeds.wait(session_id, len(sequence) - 1, self._wait_s) or has_waited

    def _follow(
        self,
        sequence: TokenSequence,
        form: KvFormat | None,
        plan: draft_pb2.Plan,
        begun_by: Reply | None,
    ) -> bool:
        """Have keys and values read from where the plan says; whether that is another place."""
        if form is None or self._local is None:
            if plan.HasField("feed"):
                raise InvalidRequest("the plan names a feed, but this draft reads none")
            return False
        if not plan.HasField("feed"):
            layers = ", ".join(map(str, form.layers))
            raise InvalidRequest(f"the draft reads target layers {layers}: the plan needs a feed")
        feed, session = _feed_from_pb(plan.feed), sequence.session
        session_id, num_same = session.session_id, self._local.num_same(sequence)
        if self._feeds.is_following(session_id, feed):
            return False
        limit = session.num_prompt_tokens + session.max_tokens
        need = FeedNeed(form, limit, len(sequence), num_same)
        return self._feeds.follow(session_id, feed, need, begun_by=begun_by)


def _feed_from_pb(message: draft_pb2.KvFeed) -> FeedAddress:
    if not (message.session_id and message.incarnation):
        raise InvalidRequest("the plan's feed lacks the session or the process to read from")
    source = KvStreamSource(message.session_id, message.incarnation)
    return FeedAddress(message.address, source, message.credential)

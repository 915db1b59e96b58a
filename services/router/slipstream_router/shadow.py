"""The shadow check: a share of finished requests, decoded again without speculation and compared.

Proves over and over that `exact` verification gives the tokens of plain decoding. Runs one check at
a time, behind everything else; knows placement and the wire, not how requests are run. Text is
never logged.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.core.errors import CapacityError, InvalidRequest, SlipstreamError
from slipstream.core.ports import Target
from slipstream.core.request.request import Request
from slipstream.core.request.server_info import ShadowInfo
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session, Verdict, Verification
from slipstream.rpc.exchange import CallOptions
from slipstream.rpc.remote_target import RemoteTarget
from slipstream_router.limits import Admission
from slipstream_router.replicas.fleet import Fleet, TargetNeeds

NEAR_TIE = 0.25
"""Margin in logits up to which rounding can decide a draw, in 16-bit numbers."""
NEAR_TIE_FLOAT32 = 1e-3

_LOG = logging.getLogger("slipstream.router")


@dataclass(frozen=True, slots=True)
class ShadowOptions:
    """Share of requests that are checked, how many may wait for that, how long rounds may take."""

    rate: float = 0.0
    max_waiting: int = 16
    round_s: float = 30.0
    token_s: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise InvalidRequest(f"shadow_rate is {self.rate}, but must be between 0 and 1")
        if self.max_waiting < 1:
            raise InvalidRequest(f"shadow_queue is {self.max_waiting}, but must be at least 1")


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request that has ended well, all of its output, and how many tokens were drafted for it."""

    request: Request
    output: tuple[int, ...]
    num_drafted: int
    wanted: TargetNeeds
    """The model that answered."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first output position at which plain decoding goes another way."""

    position: int
    token: int
    """That the request has there."""
    plain: int | None
    """That plain decoding draws; None where it has ended before."""
    margin: float | None = None
    """By how much `plain` beats `token` in that draw; None where that could not be found out."""


class Shadow:
    """Finished requests are offered to it, while `run` checks them in the background."""

    def __init__(
        self,
        fleet: Fleet,
        admission: Admission,
        options: ShadowOptions,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw` gives numbers from 0 to below 1. While `admission` has no room, nothing runs."""
        self._fleet = fleet
        self._admission = admission
        self._options = options
        self._draw = draw
        self._waiting: asyncio.Queue[AnsweredRequest] = asyncio.Queue(options.max_waiting)
        self.info = ShadowInfo(options.rate)

    def offer(self, answered: AnsweredRequest) -> None:
        """Perhaps have a request checked later. Returns at once."""
        if not self._draw() < self._options.rate:
            return
        self._count(num_offered=1)
        if answered.request.session.verification is not Verification.EXACT:
            self._count(num_incomparable=1)
        elif not (answered.num_drafted and answered.output):
            self._count(num_inconclusive=1)
        elif self._waiting.full():
            self._count(num_dropped=1)
        else:
            self._waiting.put_nowait(answered)

    async def run(self) -> None:
        """Check what is offered, one request after the other, until cancelled."""
        while self._options.rate > 0:
            await self._check(await self._waiting.get())

    async def _check(self, answered: AnsweredRequest) -> None:
        request_id = answered.request.info.request_id
        try:
            await self._compare(answered)
        except SlipstreamError as error:
            _LOG.info("request %s is not checked: %s", request_id, error)
            self._count(num_skipped=1)
        except Exception:  # a check is never worth more than the requests that run
            _LOG.exception("the check of request %s has failed", request_id)
            self._count(num_skipped=1)
        else:
            self._count(num_checked=1)

    async def _compare(self, answered: AnsweredRequest) -> None:
        self._require_room()
        placed = self._fleet.target(answered.wanted)
        description = placed.model.description
        options = CallOptions(fence=1, round_s=self._options.round_s, token_s=self._options.token_s)
        target = RemoteTarget(placed.peer, description.identity, options)
        plain = _PlainRun(target, answered)
        try:
            while plain.difference is None and not plain.is_done:
                self._require_room()
                await plain.step()
                self._count(num_checked_tokens=1)
            if plain.difference is not None:
                self._report(answered, await plain.explained(), description.dtype)
        finally:
            target.end()

    def _require_room(self) -> None:
        if not self._admission.has_room:
            raise CapacityError("the router has no room for more than its requests")

    def _report(self, answered: AnsweredRequest, found: Difference, dtype: str) -> None:
        self._count(num_diverged=1)
        if found.margin is not None:
            margins = [self.info.smallest_margin, self.info.largest_margin, found.margin]
            known = [margin for margin in margins if margin is not None]
            self.info = replace(self.info, smallest_margin=min(known), largest_margin=max(known))
        _LOG.warning(
            "request %s differs from plain decoding at output position %d: it has token %d, plain"
            " decoding %s%s",
            answered.request.info.request_id,
            found.position,
            found.token,
            "has ended" if found.plain is None else f"draws {found.plain}",
            _margin_text(found, answered.request.session, dtype),
        )

    def _count(self, **more: int) -> None:
        self.info = replace(
            self.info, **{name: getattr(self.info, name) + count for name, count in more.items()}
        )


class _PlainRun:
    """A request decoded again, token by token."""

    def __init__(self, target: Target, answered: AnsweredRequest) -> None:
        request = answered.request
        self._target = target
        self._output = answered.output
        session = replace(
            request.session,
            session_id=f"shadow-{secrets.token_hex(8)}",
            max_tokens=len(answered.output),  # no more memory than needed
            num_logprobs=None,  # tokens are all that is compared
        )
        self._sequence = TokenSequence(session, request.tokens)
        self._num_same = 0
        self.difference: Difference | None = None

    @property
    def is_done(self) -> bool:
        """Return whether all of the output is the same."""
        return self._num_same == len(self._output)

    async def step(self) -> None:
        """Draw the next token, and compare it."""
        verdict = await self._verify(Proposal())
        position, drawn = self._num_same, verdict.tokens[0]
        if drawn != self._output[position]:
            self.difference = Difference(position, self._output[position], drawn)
            return
        self._num_same += 1
        self._sequence.append((drawn,))
        if verdict.finish_reason is not None and not self.is_done:
            self.difference = Difference(position + 1, self._output[position + 1], None)

    async def explained(self) -> Difference:
        """The difference, with its margin if the target can say it."""
        found = self.difference
        assert found is not None
        if found.plain is None:
            return found
        try:
            verdict = await self._verify(Proposal(rivals=(found.token,)))
        except SlipstreamError as error:
            _LOG.info("the margin of a difference is unknown: %s", error)
            return found
        if verdict.tokens[0] != found.plain:
            _LOG.warning("asked again, the target draws token %d", verdict.tokens[0])
        if verdict.tokens[0] != found.plain or not verdict.margins:
            return found
        return replace(found, margin=verdict.margins[0])

    async def _verify(self, proposal: Proposal) -> Verdict:
        return await self._target.verify(self._sequence, proposal)


def _margin_text(found: Difference, session: Session, dtype: str) -> str:
    if found.plain is None:
        return ""
    if found.margin is None:
        return "; the margin is unknown"
    limit = NEAR_TIE_FLOAT32 if dtype == "float32" else NEAR_TIE
    heat = session.sampling.temperature or 1.0
    kind = "a near-tie" if found.margin <= limit / heat else "no near-tie"
    return f" by a margin of {found.margin:.4g}, {kind}"

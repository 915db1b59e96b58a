"""Runs requests: from a generation request to chunks of text, on the replicas chosen for it."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from slipstream.core.errors import SessionBusy, Unavailable
from slipstream.core.inline import ended
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.request import Generation, Request
from slipstream.core.request.results import Chunk
from slipstream.core.run import Journal, Run
from slipstream.ngrams.store_file import NgramStores
from slipstream.rpc.exchange import CallOptions
from slipstream.state.journal import StoreJournal
from slipstream.state.session_leases import (
    AcquiredSession,
    SessionLeases,
    check_received,
    owner_digest,
    replayed,
    turn_request,
)
from slipstream.state.store import Opening, Record
from slipstream.telemetry import catalog
from slipstream_router.config import RouterConfig
from slipstream_router.lease_keeper import LeaseKeeper, WriteBehind
from slipstream_router.limits import Admission, Remaining
from slipstream_router.replicas.fleet import ChosenTarget, Fleet
from slipstream_router.replicas.probes import DescribedTarget
from slipstream_router.replicas.request_replicas import RequestReplicas, free_parked
from slipstream_router.request_telemetry import ENTER, RequestRecorder, RouterTelemetry

_FORGET_LIMIT_S = 2.0
_LEFT_TURN_S, _LEFT_TURN_STEP_S = 5.0, 0.1
"""Longest wait for a turn that was left, and time between two looks at it."""

T = TypeVar("T")
Send = Callable[[Chunk], Awaitable[None]]
"""Sends a chunk to the caller, and returns when there is room for the next one."""


@dataclass(frozen=True, slots=True)
class RouterCall:
    """A request of an owner, and how its caller gets the answer."""

    asked: Generation
    owner: str
    remaining: Remaining
    """Returns the seconds that the caller waits, None without a limit."""
    recorder: RequestRecorder
    send: Send


@dataclass(frozen=True, slots=True)
class RequestRunner:
    """Runs requests, and stores the sessions among them."""

    fleet: Fleet
    sessions: SessionLeases
    leases: LeaseKeeper
    ngrams: NgramStores
    admission: Admission
    config: RouterConfig
    telemetry: RouterTelemetry

    async def run(self, call: RouterCall) -> None:
        """Run a request, go on with it, or send its stored answer."""
        with self.admission.place():
            asked, recorder = call.asked, call.recorder
            if not asked.ask.request_id:
                asked = replace(asked, ask=replace(asked.ask, request_id=secrets.token_hex(8)))
            recorder.record_id(asked.ask.request_id)
            recorder.span.ends(ENTER)
            with recorder.span.stage("acquire", "session.acquire"):
                record, journal = await self._acquired(asked, call.owner)
            recorder.span.begins("between")
            recorder.record_session(record.session_id)
            if journal is None:
                model = self._answered_by(record)
                answer = (asked, record, model.facts, model.text.table.decode)
                await call.send(await asyncio.to_thread(replayed, *answer))
            else:
                await self._run(replace(call, asked=asked), record, journal)

    async def token_ids(self, asked: Generation) -> tuple[int, ...]:
        """Return a prompt's token ids, as a request with it would use them."""
        with self.admission.place():
            model = self.fleet.models()[self.fleet.model_name(asked.model)].model
            return await _encoded(model, asked)

    async def forget(self, session_id: str, owner: str) -> None:
        """Forget a session, and have its keys freed where they may be."""
        record = await self.sessions.store.delete(session_id, owner)
        await free_parked(
            self.fleet, record, CallOptions(fence=record.fence, round_s=_FORGET_LIMIT_S)
        )

    async def _acquired(self, asked: Generation, owner: str) -> AcquiredSession:
        """Return the session of a request. Where that names the turn it follows, a turn that runs
        may be one whose caller has just left: it has a moment to end."""
        names_turn = asked.session is not None and asked.session.after != ""
        num_left = round(_LEFT_TURN_S / _LEFT_TURN_STEP_S) if names_turn else 0
        model = self._model(asked)
        while True:
            try:
                taking = self.sessions.acquire(asked, owner, model)
                return await self.leases.acquired(taking)
            except SessionBusy:
                if not num_left:
                    raise
            num_left -= 1
            await asyncio.sleep(_LEFT_TURN_STEP_S)

    async def _run(self, call: RouterCall, record: Record, journal: StoreJournal) -> None:
        asked, recorder = call.asked, call.recorder
        async with AsyncExitStack() as stack:
            location = await stack.enter_async_context(self.leases.kept(journal))
            placed, request, facts = await self._placed(call, record)
            self.telemetry.rounds.count(catalog.TOKENS_PROMPT, amount=len(request.tokens))
            recorder.span.begins("between")
            model = placed.model
            opening = Opening(len(request.tokens), model.tokenizer_hash, model.arithmetic)
            journal.open(request.tokens, opening)

            def on_loss() -> None:
                self.telemetry.rounds.count(catalog.TARGET_LOSSES, amount=1)
                journal.lost_target()

            replicas = self._replicas(call, record, placed, facts.kind, on_loss)
            stack.push_async_callback(replicas.release, record.session_id)
            written = WriteBehind(journal)
            stack.push_async_callback(written.finish)
            run = await self._prepared(request, replicas, placed, written, recorder)
            # The text of a round comes first where a stop string in it is to end the request.
            chunks = one_ahead(run.chunks()) if request.stop else run.chunks()
            async for chunk in await stack.enter_async_context(aclosing(chunks)):
                await written.settled()
                await call.send(chunk)
                if chunk.stats is not None:
                    num_unkept = chunk.stats.continuity.num_unkept_tokens
                    self.telemetry.rounds.count(catalog.TOKENS_UNKEPT, amount=num_unkept)
            recorder.rounds.settles()
            recorder.span.ends("settle")
            if asked.session is not None:
                with recorder.span.stage("park", "session.park"):
                    await replicas.park(self.config.park_ttl_s, location)
            recorder.span.begins("close")

    async def _prepared(
        self,
        request: Request,
        replicas: RequestReplicas,
        placed: ChosenTarget,
        journal: Journal,
        recorder: RequestRecorder,
    ) -> Run:
        """Return the request ready to run; a long past output is turned into text in a thread."""
        make_run = partial(
            Run,
            replicas.draft,
            replicas.target,
            request,
            text=placed.model.text.table,
            clock=time.perf_counter,
            journal=journal,
            observer=recorder.rounds,
            ahead=one_ahead,
        )
        return await asyncio.to_thread(make_run) if request.past else make_run()

    def _model(self, asked: Generation) -> str:
        if asked.session is not None and not asked.session.create and not asked.model:
            return ""
        return self.fleet.model_name(asked.model)

    def _answered_by(self, record: Record) -> DescribedTarget:
        placed = self.fleet.models().get(record.model)
        if placed is None or placed.model.tokenizer_hash != record.tokenizer_hash:
            raise Unavailable(f"no target for model {record.model} has been reached yet")
        return placed.model

    async def _placed(
        self, call: RouterCall, record: Record
    ) -> tuple[ChosenTarget, Request, DraftFacts]:
        """Choose a target, encode the prompt, and choose again: others were placed meanwhile."""
        asked, span, resting = call.asked, call.recorder.span, self.fleet.breakers.resting
        arithmetic = record.arithmetic if record.output else None  # equal once there are tokens
        place = partial(
            self.fleet.target,
            record.model,
            tokenizer_hash=record.tokenizer_hash,
            arithmetic=arithmetic,
            sticky=record.target,
        )
        placed = place(excluded=resting())
        span.ends("between")
        with span.stage("encode", "prompt.encode"):
            model = placed.model
            check_received(asked, record, is_repeatable=model.description.numerics == "invariant")
            facts = self.fleet.draft_facts(placed, asked.ask.speculation.drafter)
            encode = partial(_encoded, model, asked)
            request = await turn_request(asked, record, model.facts, facts, encode)
        again = place(excluded=resting())
        return again if again.model.facts == model.facts else placed, request, facts

    def _replicas(
        self,
        call: RouterCall,
        record: Record,
        placed: ChosenTarget,
        kind: str,
        on_loss: Callable[[], None],
    ) -> RequestReplicas:
        config, remaining, model = self.config, call.remaining, placed.model
        target = CallOptions(
            record.fence,
            config.target_round_timeout_s,
            config.target_token_timeout_s,
            remaining,
            queue_s=config.target_queue_s,
            owner=owner_digest(record.owner),
        )
        times = (config.draft_round_timeout_s, config.draft_token_timeout_s)
        return RequestReplicas(
            fleet=self.fleet,
            placed=placed,
            to_target=target,
            to_draft=CallOptions(record.fence, *times, remaining, owner=target.owner),
            kind=kind,
            sticky=record.draft,
            target_wait_s=config.target_wait_s,
            store=self.ngrams.of(model.tokenizer_hash, vocab_size=model.facts.vocab_size),
            on_loss=on_loss,
        )


async def _encoded(
    model: DescribedTarget, asked: Generation, last_token: int | None = None
) -> tuple[int, ...]:
    longest = model.facts.context_length
    return await model.text.encode(
        asked.prompt, asked.ask.form, max_tokens=longest, last_token=last_token
    )


async def one_ahead(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The items; the next one is begun before one is given out, and made meanwhile: no more than
    one is ahead."""

    async def make() -> T | None:
        return await anext(items, None)

    async with aclosing(items):
        making = asyncio.create_task(make())
        try:
            # To await the task itself would hand every cancellation on to it.
            await asyncio.wait({making})
            while (item := making.result()) is not None:
                making = asyncio.create_task(make())
                await asyncio.sleep(0)  # in this turn of the loop the round is planned,
                await asyncio.sleep(0)  # and in this one a task sends its first message
                yield item
                await asyncio.wait({making})
        finally:
            making.cancel()
            await ended(making)

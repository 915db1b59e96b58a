"""Runs requests: from a generation request to chunks of text, on the replicas chosen for it."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial

from slipstream.core.draft.ngram_sources import NgramStore
from slipstream.core.errors import SessionBusy, Unavailable
from slipstream.core.journal import Journal
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.request import Generation, Request
from slipstream.core.request.results import Chunk
from slipstream.core.run import Run
from slipstream.ngrams.store_file import NgramStores
from slipstream.rpc.exchange import CallOptions
from slipstream.state.journal import StoreJournal
from slipstream.state.record import Opening, Record
from slipstream.state.session_leases import (
    AcquiredSession,
    SessionLeases,
    check_received,
    owner_digest,
    replayed,
    turn_request,
)
from slipstream_router.ahead import WriteBehind, one_ahead
from slipstream_router.lease_keeper import LeaseKeeper
from slipstream_router.limits import Admission
from slipstream_router.replicas.fleet import ChosenTarget, Fleet, TargetNeeds
from slipstream_router.replicas.probes import DescribedTarget
from slipstream_router.replicas.request_replicas import (
    RequestReplicaOptions,
    RequestReplicas,
    free_parked,
)
from slipstream_router.request_telemetry import ENTER, RequestRecorder, RouterTelemetry

_FORGET_LIMIT_S = 2.0
_LEFT_TURN_S, _LEFT_TURN_STEP_S = 5.0, 0.1
"""Longest wait for a turn that was left, and time between two looks at it."""

Remaining = Callable[[], float | None]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of time of rounds, requests and parked keys and values: see `RouterConfig`."""

    target_round_s: float = 30.0
    target_token_s: float = 0.02
    target_queue_s: float = 60.0
    target_wait_s: float = 30.0
    draft_round_s: float = 2.0
    draft_token_s: float = 0.005
    park_ttl_s: float = 300.0


@dataclass(frozen=True, slots=True)
class RouterState:
    """Sessions, their leases, and the n-grams that requests copy from."""

    claims: SessionLeases
    leases: LeaseKeeper
    stores: NgramStores


@dataclass(frozen=True, slots=True)
class _RunningRequest:
    """A request that holds its session's lease."""

    asked: Generation
    record: Record
    journal: StoreJournal
    remaining: Remaining
    recorder: RequestRecorder


class RequestRunner:
    """Runs requests, and stores the sessions among them."""

    def __init__(
        self,
        fleet: Fleet,
        state: RouterState,
        admission: Admission,
        *,
        timeouts: Timeouts,
        telemetry: RouterTelemetry,
    ) -> None:
        self._fleet = fleet
        self._state = state
        self._admission = admission
        self._timeouts = timeouts
        self._telemetry = telemetry

    async def chunks(
        self, asked: Generation, owner: str, remaining: Remaining, recorder: RequestRecorder
    ) -> AsyncGenerator[Chunk, None]:
        """Run a request of an owner, go on with it, or return its stored answer.

        `remaining` returns the seconds that the caller waits, None without a limit.
        """
        with self._admission.place():
            asked = _named(asked)
            recorder.record_id(asked.ask.request_id)
            recorder.span.ends(ENTER)
            with recorder.span.stage("acquire"):
                taken = await self._acquired(asked, owner)
            recorder.span.begins("between")
            recorder.record_session(taken.record.session_id)
            if taken.journal is None:
                model = self._answered_by(taken.record)
                decode = model.text.table.decode
                yield await asyncio.to_thread(replayed, asked, taken.record, model.facts, decode)
                return
            work = _RunningRequest(asked, taken.record, taken.journal, remaining, recorder)
            async with aclosing(self._run(work)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def tokens(self, asked: Generation) -> AsyncGenerator[Chunk, None]:
        """One chunk of a prompt's token ids, as a request with it would use them."""
        with self._admission.place():
            model = self._fleet.models()[self._fleet.model_name(asked.model)].model
            yield Chunk("", await _encoded(model, asked))

    async def forget(self, session_id: str, owner: str) -> None:
        """Forget a session, and have its keys freed where they may be."""
        record = await self._state.claims.delete(session_id, owner)
        await free_parked(
            self._fleet, record, CallOptions(fence=record.fence, round_s=_FORGET_LIMIT_S)
        )

    async def _acquired(self, asked: Generation, owner: str) -> AcquiredSession:
        """Return the session of a request. Where that names the turn it follows, a turn that runs
        may be one whose caller has just left: it has a moment to end."""
        names_turn = asked.session is not None and asked.session.after != ""
        num_left = round(_LEFT_TURN_S / _LEFT_TURN_STEP_S) if names_turn else 0
        model = self._model(asked)
        while True:
            try:
                taking = self._state.claims.acquire(asked, owner, model)
                return await self._state.leases.acquired(taking)
            except SessionBusy:
                if not num_left:
                    raise
            num_left -= 1
            await asyncio.sleep(_LEFT_TURN_STEP_S)

    async def _run(self, job: _RunningRequest) -> AsyncGenerator[Chunk, None]:
        asked, record, journal, recorder = job.asked, job.record, job.journal, job.recorder
        async with AsyncExitStack() as stack:
            location = await stack.enter_async_context(self._state.leases.kept(journal))
            place = partial(self._fleet.target, _wanted(record))
            placed = place(excluded=self._fleet.breakers.resting())
            recorder.span.ends("between")
            with recorder.span.stage("encode", "prompt.encode"):
                request, facts = await self._request(asked, record, placed)
            again = place(excluded=self._fleet.breakers.resting())  # others were placed meanwhile
            placed = again if again.model.facts == placed.model.facts else placed
            self._telemetry.record_start(request)
            recorder.span.begins("between")
            journal.open(request.tokens, _opening(request, placed.model))
            replicas = self._replicas(placed, facts.kind, job)
            stack.push_async_callback(replicas.release, record.session_id)
            written = WriteBehind(journal)
            stack.push_async_callback(written.finish)
            run = await self._prepared(request, replicas, placed, written, recorder)
            # A stop string is found in the text, and must end the request before the next round.
            chunks = one_ahead(run.chunks()) if request.stop else run.chunks(one_ahead)
            async for chunk in await stack.enter_async_context(aclosing(chunks)):
                await written.settled()
                yield chunk
                if chunk.stats is not None:
                    self._telemetry.record_end(chunk.stats)
            recorder.record_settled()
            if asked.session is not None:
                with recorder.span.stage("park", "session.park"):
                    await replicas.park(self._timeouts.park_ttl_s, location)
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
            replicas,
            request,
            text=placed.model.text.table,
            clock=time.perf_counter,
            journal=journal,
            observer=recorder.rounds,
        )
        return await asyncio.to_thread(make_run) if request.past else make_run()

    def _model(self, asked: Generation) -> str:
        """The model that is meant; empty for that of a session which goes on."""
        if asked.session is not None and not asked.session.create and not asked.model:
            return ""
        return self._fleet.model_name(asked.model)

    def _answered_by(self, record: Record) -> DescribedTarget:
        placed = self._fleet.models().get(record.model)
        if placed is None or placed.model.tokenizer_hash != record.tokenizer_hash:
            raise Unavailable(f"no target for model {record.model} has been reached yet")
        return placed.model

    async def _request(
        self, asked: Generation, record: Record, placed: ChosenTarget
    ) -> tuple[Request, DraftFacts]:
        ask, model = asked.ask, placed.model
        check_received(asked, record, is_repeatable=model.description.numerics == "invariant")
        facts = self._fleet.draft_facts(placed, ask.speculation.drafter)
        encode = partial(_encoded, model, asked)
        return await turn_request(asked, record, model.facts, facts, encode), facts

    def _store(self, placed: ChosenTarget) -> NgramStore | None:
        """Return the n-gram store of the target's model, if there is one."""
        model = placed.model
        return self._state.stores.of(model.tokenizer_hash, vocab_size=model.facts.vocab_size)

    def _replicas(self, placed: ChosenTarget, kind: str, job: _RunningRequest) -> RequestReplicas:
        limits, record, remaining = self._timeouts, job.record, job.remaining
        target = CallOptions(
            record.fence,
            limits.target_round_s,
            limits.target_token_s,
            remaining,
            queue_s=limits.target_queue_s,
            owner=owner_digest(record.owner),
        )
        times = (limits.draft_round_s, limits.draft_token_s)
        draft = CallOptions(record.fence, *times, remaining, owner=target.owner)
        options = RequestReplicaOptions(
            target,
            draft,
            kind,
            sticky=record.draft,
            target_wait_s=limits.target_wait_s,
            store=self._store(placed),
        )
        on_loss = self._telemetry.counting_losses(job.journal.lost_target)
        return RequestReplicas(self._fleet, placed, options, on_loss=on_loss)


async def _encoded(
    model: DescribedTarget, asked: Generation, last_token: int | None = None
) -> tuple[int, ...]:
    longest = model.facts.context_length
    return await model.text.encode(
        asked.prompt, asked.ask.form, max_tokens=longest, last_token=last_token
    )


def _named(asked: Generation) -> Generation:
    if asked.ask.request_id:
        return asked
    return replace(asked, ask=replace(asked.ask, request_id=secrets.token_hex(8)))


def _wanted(record: Record) -> TargetNeeds:
    """Targets that a turn may run at: those of equal weights once it has tokens, else any."""
    arithmetic = record.arithmetic if record.output else None
    return TargetNeeds(record.model, record.tokenizer_hash, record.target, arithmetic)


def _opening(request: Request, model: DescribedTarget) -> Opening:
    return Opening.of(request, model.tokenizer_hash, arithmetic=model.arithmetic)

"""Requests: from what was asked to chunks of text, on the replicas that were chosen for it.

Knows sessions, text and placement; not the public API on the wire.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial

from slipstream.core.errors import Unavailable
from slipstream.core.ngram_sources import NgramSources
from slipstream.core.request import (
    DraftFacts,
    Generation,
    Request,
    draft_settings,
    make_request,
)
from slipstream.core.results import Chunk, RequestStats
from slipstream.core.run import Run
from slipstream.ngrams.registry import NgramStores
from slipstream.router.admission import Admission
from slipstream.router.ahead import WriteBehind, one_ahead
from slipstream.router.encoder import PromptEncoder
from slipstream.router.fleet import Fleet, Placed, Wanted
from slipstream.router.learner import TrafficLearner
from slipstream.router.observing import ENTER, Observing, RequestWatch
from slipstream.router.places import Pair, SeatTerms, free_parked
from slipstream.router.probes import TargetModel
from slipstream.router.shadow import Answered, Shadow
from slipstream.router.upkeep import Upkeep, Whereabouts
from slipstream.rpc.exchange import Terms
from slipstream.state.journal import StoreJournal
from slipstream.state.record import Opening, Record
from slipstream.state.session_leases import SessionLeases, check_received, replayed
from slipstream.text.tokenizer import TextTokenizer

INVARIANT = "invariant"
_FORGET_LIMIT_S = 2.0

Remaining = Callable[[], float | None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long rounds may take and wait for memory, how long requests wait for a target when all
    are lost, and how long keys are kept between turns. See `RouterConfig`."""

    target_round_s: float = 30.0
    target_token_s: float = 0.02
    target_queue_s: float = 60.0
    target_wait_s: float = 30.0
    draft_round_s: float = 2.0
    draft_token_s: float = 0.005
    park_ttl_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What a router remembers requests with, and what n-gram stores it has."""

    claims: SessionLeases
    upkeep: Upkeep
    stores: NgramStores
    learner: TrafficLearner


@dataclass(frozen=True, slots=True)
class _Work:
    """A request that may run: what is asked, what was there before, and who follows it."""

    asked: Generation
    record: Record
    journal: StoreJournal
    remaining: Remaining
    watch: RequestWatch


class Turns:
    """Runs requests, and has the sessions among them remembered."""

    def __init__(
        self,
        fleet: Fleet,
        memory: Memory,
        admission: Admission,
        *,
        patience: Patience,
        shadow: Shadow,
        observing: Observing,
    ) -> None:
        """Requests that have ended well are offered to the `shadow`."""
        self._encoder = PromptEncoder()
        self._fleet = fleet
        self._memory = memory
        self._admission = admission
        self._patience = patience
        self._shadow = shadow
        self._observing = observing

    async def chunks(
        self, asked: Generation, owner: str, remaining: Remaining, watch: RequestWatch
    ) -> AsyncGenerator[Chunk, None]:
        """Run a request of an owner, go on with it, or say again what became of it.

        `remaining` is the caller's patience in seconds, None being endless.
        """
        with self._admission.place():
            asked = _named(asked)
            watch.named(asked.ask.request_id)
            watch.span.ends(ENTER)
            with watch.span.stage("acquire"):
                taking = self._memory.claims.acquire(asked, owner, self._model(asked))
                taken = await self._memory.upkeep.taken(taking)
            watch.span.begins("between")
            watch.holds(taken.record.session_id)
            if taken.journal is None:
                decode = self._tokenizer(taken.record).decode
                yield await asyncio.to_thread(replayed, asked, taken.record, decode)
                return
            work = _Work(asked, taken.record, taken.journal, remaining, watch)
            async with aclosing(self._run(work)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def tokens(self, asked: Generation) -> AsyncGenerator[Chunk, None]:
        """One chunk of a prompt's token ids, as a request with it would use them."""
        with self._admission.place():
            model = self._fleet.models()[self._fleet.model_name(asked.model)].model
            ids = await self._encoder.encode(model, asked.prompt, asked.ask)
            yield Chunk("", ids)

    async def forget(self, session_id: str, owner: str) -> None:
        """Forget a session, and have its keys freed where they may be."""
        record = await self._memory.claims.delete(session_id, owner)
        await free_parked(self._fleet, record, Terms(fence=record.fence, round_s=_FORGET_LIMIT_S))

    def close(self) -> None:
        """Encode nothing more."""
        self._encoder.close()

    async def _run(self, work: "_Work") -> AsyncGenerator[Chunk, None]:
        asked, record, journal, watch = work.asked, work.record, work.journal, work.watch
        where = Whereabouts()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._memory.upkeep.tended(journal, where))
            placed = self._fleet.target(_wanted(record), excluded=self._fleet.breakers.resting())
            watch.span.ends("between")
            with watch.span.stage("encode", "prompt.encode"):
                request, facts = await self._request(asked, record, placed)
            self._observing.began(request)
            watch.span.begins("between")
            journal.open(request.tokens, _opening(request, placed.model))
            pair = self._pair(placed, facts.kind, work)
            stack.push_async_callback(pair.release, record.session_id)
            written = WriteBehind(journal)
            stack.push_async_callback(written.finish)
            draft, target = watch.ports(pair.draft, pair.target)
            make_run = partial(
                Run,
                draft,
                target,
                request,
                text=placed.model.tokenizer,
                clock=time.perf_counter,
                journal=written,
            )
            run = await asyncio.to_thread(make_run) if request.past else make_run()
            chunks = one_ahead(run.chunks())
            async for chunk in await stack.enter_async_context(aclosing(chunks)):
                await written.settled()
                yield chunk
                if chunk.stats is not None:
                    answered = _answered(request, run.output, chunk.stats, placed)
                    self._ended(answered, placed, record.owner)
                    self._observing.ended(chunk.stats)
            watch.settles()
            if asked.session is not None:
                with watch.span.stage("park", "session.park"):
                    await pair.park(self._patience.park_ttl_s, where)
            watch.span.begins("close")

    def _ended(self, answered: Answered, placed: Placed, owner: str) -> None:
        """Have a request that has ended well checked, perhaps, and learned from."""
        self._shadow.offer(answered)
        text = (*answered.request.tokens, *answered.output)
        self._memory.learner.learn(placed.model, owner, text)

    def _model(self, asked: Generation) -> str:
        """The model that is meant; empty for that of a session which goes on."""
        if asked.session is not None and not asked.session.create and not asked.model:
            return ""
        return self._fleet.model_name(asked.model)

    def _tokenizer(self, record: Record) -> TextTokenizer:
        placed = self._fleet.models().get(record.model)
        if placed is None or placed.model.tokenizer_hash != record.tokenizer_hash:
            raise Unavailable(f"no target for model {record.model} has been reached yet")
        return placed.model.tokenizer

    async def _request(
        self, asked: Generation, record: Record, placed: Placed
    ) -> tuple[Request, DraftFacts]:
        """The request, checked; its prompt is encoded unless that was done when it began."""
        ask, model = asked.ask, placed.model
        check_received(asked, record, is_repeatable=model.description.numerics == INVARIANT)
        facts = self._fleet.draft_facts(placed, ask.speculation.drafter)
        draft_settings(ask.speculation, facts)  # refused before anything is encoded
        tokens = record.tokens[: record.turn.num_prompt_tokens]
        if not tokens:
            before = record.tokens
            last_token = before[-1] if before else None
            new = await self._encoder.encode(model, asked.prompt, ask, last_token=last_token)
            tokens = (*before, *new)
        request = make_request(record.session_id, tokens, ask, model.facts, facts)
        return replace(request, past=record.output, num_received=asked.num_received), facts

    def _sources(self, placed: Placed, record: Record) -> NgramSources:
        """Return what a request may copy from, beside its own text."""
        memory, model = self._memory, placed.model
        store = memory.stores.of(model.tokenizer_hash, vocab_size=model.facts.vocab_size)
        return NgramSources(store, memory.learner.memory(model, record.owner))

    def _pair(self, placed: Placed, kind: str, work: "_Work") -> Pair:
        patience, record = self._patience, work.record
        fence, remaining = record.fence, work.remaining
        terms = SeatTerms(
            Terms(
                fence,
                patience.target_round_s,
                patience.target_token_s,
                remaining,
                queue_s=patience.target_queue_s,
            ),
            Terms(fence, patience.draft_round_s, patience.draft_token_s, remaining),
            kind,
            record.draft,
            patience.target_wait_s,
            self._sources(placed, record),
        )
        on_loss = self._observing.losing(work.journal.lost_target)
        return Pair(self._fleet, placed, terms, on_loss=on_loss)


def _named(asked: Generation) -> Generation:
    if asked.ask.request_id:
        return asked
    return replace(asked, ask=replace(asked.ask, request_id=secrets.token_hex(8)))


def _wanted(record: Record) -> Wanted:
    """Targets that a turn may run at: those of equal weights once it has tokens, else any."""
    arithmetic = record.arithmetic if record.output else None
    return Wanted(record.model, record.tokenizer_hash, record.target, arithmetic)


def _opening(request: Request, model: TargetModel) -> Opening:
    return Opening.of(request, model.tokenizer_hash, arithmetic=model.arithmetic)


def _answered(
    request: Request, output: Sequence[int], stats: RequestStats, placed: Placed
) -> Answered:
    model = placed.model
    wanted = Wanted(model.name, model.tokenizer_hash, arithmetic=model.arithmetic)
    return Answered(request, tuple(output), stats.speculation.num_draft_tokens, wanted)

"""A running request: rounds in, chunks of text and statistics out, and its journal."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.core.logprobs import TokenLogprob, with_texts
from slipstream.core.loop import decode
from slipstream.core.policy.planner import Planner
from slipstream.core.ports import Draft, Target
from slipstream.core.request.origins import RoundTree, TokenOrigin, origins_of, round_tree
from slipstream.core.request.request import Request
from slipstream.core.request.results import (
    Chunk,
    Continuity,
    Ending,
    PromptInfo,
    RequestStats,
    Timings,
)
from slipstream.core.request.stats import Outcomes
from slipstream.core.round import Clock, Round, RoundObserver
from slipstream.core.sequence import TokenSequence
from slipstream.core.text import Detokenizer, Piece, TextStream, joined
from slipstream.core.types import FinishReason, ReplyTiming

Rounds = AsyncGenerator[Round, None]


class Journal(Protocol):
    """One request's."""

    async def keep(self, tokens: Sequence[int], ending: Ending | None) -> None:
        """Keep output tokens that follow those kept before; with the last ones, how it ended.

        Raises `SessionTaken` when another process goes on with the request.
        """

    def continuity(self) -> Continuity:
        """Return the losses of the request so far, without those it began with."""


@dataclass(eq=False)
class Run:
    """A running request. Iterate it once; `output` has its final tokens, yielded or not.

    What is final is written to the `journal`, if any, before it is yielded. The request's past
    output is turned into text at the start, which takes long where it is long.
    """

    draft: Draft
    target: Target
    request: Request
    text: Detokenizer
    clock: Clock
    journal: Journal | None = None
    observer: RoundObserver | None = None
    ahead: Callable[[Rounds], Rounds] = lambda rounds: rounds
    """Begins a round before the last one is turned into text. No round begins before it is known
    that the text has no stop string."""

    def __post_init__(self) -> None:
        request = self.request
        self._seconds = defaultdict[str, float](float, draft_s=0.0, verify_s=0.0)
        """Times of replies, by the fields of `Timings`."""
        num_past, num_sent = len(request.past), request.num_received
        before = request.tokens if request.goes_on else ()
        self._stream = TextStream(self.text.decode, request.stop, num_sent=num_sent, before=before)
        self._past = self._stream.push(request.past)
        self._unsent_rounds: list[RoundTree] = []
        """Rounds whose tokens are not sent yet."""
        self._num_sent = num_sent
        self._origins: list[TokenOrigin | None] = [None] * num_past
        """One for each token of the output; of those that were final before nothing is known."""
        self._logprobs: list[TokenLogprob | None] = [None] * num_past
        self._outcomes = Outcomes()
        self._num_cached = 0
        self._returns_logprobs = request.session.num_logprobs is not None
        self._first_s: float | None = None
        self.output: list[int] = list(request.past)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield chunks as they become final; the last one has the reason and the statistics.

        Raises `SessionTaken` once another process goes on with the request.
        """
        request = self.request
        info: PromptInfo | None = request.info
        start = self.clock()
        if self._past.tokens:
            yield self._chunk(self._past, prompt=info)
            info = None
        planner = Planner(request.settings, num_prompt_tokens=len(request.tokens))
        sequence = TokenSequence(request.session, (*request.tokens, *request.past))
        own = self.draft, self.target, planner, sequence
        rounds = decode(*own, clock=self.clock, observer=self.observer)
        rounds = rounds if request.stop else self.ahead(rounds)
        async with aclosing(rounds):
            async for round_ in rounds:
                self._count(round_, start)
                piece, reason = self._piece(round_)
                info = info and self._with_prompt_logprobs(info, round_)
                stats = await self._keep(round_, reason, start)
                if piece.tokens or stats is not None:
                    yield self._chunk(piece, reason, stats, info)
                    info = None
                if stats is not None:
                    return

    def _with_prompt_logprobs(self, info: PromptInfo, round_: Round) -> PromptInfo:
        known, tokens = round_.verdict.prompt_logprobs, self.request.tokens[1:]
        if not self.request.session.has_prompt_logprobs or len(known) != len(tokens):
            return info
        return replace(info, logprobs=(None, *with_texts(known, tokens, self.text.token_bytes)))

    def _chunk(
        self,
        piece: Piece,
        reason: FinishReason | None = None,
        stats: RequestStats | None = None,
        prompt: PromptInfo | None = None,
    ) -> Chunk:
        tokens, start = piece.tokens, self._num_sent
        self._num_sent = end = start + len(tokens)
        origins = tuple(self._origins[start:end]) if self.request.with_origins else ()
        known = tuple(self._logprobs[start:end]) if self._returns_logprobs else ()
        logprobs = with_texts(known, tokens, self.text.token_bytes) if known else ()
        rounds, self._unsent_rounds = tuple(self._unsent_rounds), []
        return Chunk(piece.text, tokens, reason, stats, prompt, origins, logprobs, rounds)

    async def _keep(
        self, round_: Round, reason: FinishReason | None, start: float
    ) -> RequestStats | None:
        """Write down what the round made final; the statistics if it was the last."""
        news = round_.verdict.tokens[: self._stream.num_tokens - len(self.output)]
        self.output += news
        if reason is None:
            if news and self.journal:
                await self.journal.keep(news, None)
            return None
        stats = self._stats(self.clock() - start)
        if self.journal:
            await self.journal.keep(news, Ending(reason, stats))
        return replace(stats, continuity=self._continuity())

    def _continuity(self) -> Continuity:
        num_resumed = len(self.request.past)
        losses = self.journal.continuity() if self.journal else Continuity()
        return replace(losses, num_resumed_tokens=num_resumed)

    def _piece(self, round_: Round) -> tuple[Piece, FinishReason | None]:
        verdict = round_.verdict
        if self.request.with_rounds:
            self._unsent_rounds.append(round_tree(round_, self.text))
        if self.request.with_origins:
            self._origins += origins_of(round_)
        if self._returns_logprobs:  # a target of another version may have none
            self._logprobs += verdict.logprobs or (None,) * len(verdict.tokens)
        piece = self._stream.push(verdict.tokens)
        if piece.is_stopped:
            return piece, FinishReason.STOP
        reason = verdict.finish_reason
        if reason is None:
            return piece, None
        return joined((piece, self._stream.finish())), reason

    def _count(self, round_: Round, start: float) -> None:
        if self._first_s is None:  # the prompt's own round
            self._first_s = round_.start_s + round_.seconds - start
            self._num_cached = round_.verdict.num_cached
            return
        if round_.proposing is not None:
            self._seconds["draft_s"] += round_.proposing_s
            self._add_parts("draft", round_.proposal.timing)
        self._seconds["verify_s"] += round_.verifying_s
        self._add_parts("target", round_.verdict.timing)
        self._outcomes.record(round_)

    def _add_parts(self, engine: str, timing: ReplyTiming | None) -> None:
        """Count the parts of a reply that its service reported; an engine here reports none."""
        if timing is not None:
            self._seconds[f"{engine}_service_s"] += timing.service_s
            self._seconds[f"{engine}_engine_s"] += timing.engine_s
            self._seconds["kv_wait_s"] += timing.kv_wait_s
            self._seconds["serialisation_s"] += timing.serialisation_s

    def _stats(self, elapsed_s: float) -> RequestStats:
        settings = self.request.settings
        first_s = self._first_s or 0.0
        return RequestStats(
            num_prompt_tokens=len(self.request.tokens),
            num_cached_tokens=self._num_cached,
            num_output_tokens=len(self.output),
            timings=Timings(first_s, elapsed_s - first_s, **self._seconds),
            speculation=self._outcomes.summary(
                num_spec_tokens=settings.longest_path, lossless=settings.verification.is_lossless
            ),
            continuity=self._continuity(),
        )

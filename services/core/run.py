"""One request on its way: rounds in, chunks of text and statistics out.

Knows the two ports and the loop between them; not where they live, nor the clock.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from slipstream.core.loop import Round, decode
from slipstream.core.planner import Planner
from slipstream.core.ports import Draft, Target
from slipstream.core.request import Request
from slipstream.core.results import Chunk, PromptInfo, RequestStats, Timings
from slipstream.core.stats import Outcomes, num_copied_accepted
from slipstream.core.text import Piece, TextStream
from slipstream.core.timing import Clock, Spent, TimedDraft, TimedTarget
from slipstream.core.types import FinishReason


class Run:
    """A request on its way. Iterate it once; `output` then holds the final token ids."""

    def __init__(
        self,
        draft: Draft,
        target: Target,
        request: Request,
        *,
        detokenise: Callable[[Sequence[int]], str],
        clock: Clock,
    ) -> None:
        self._request = request
        self._clock = clock
        self._draft = TimedDraft(draft, clock)
        self._target = TimedTarget(target, clock)
        self._stream = TextStream(detokenise, request.stop)
        self._outcomes = Outcomes()
        self._num_cached = 0
        self._first_s: float | None = None
        self.output: list[int] = []

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Chunks as they become final; the last one carries the reason and the statistics."""
        request = self._request
        info: PromptInfo | None = request.info
        start = self._clock()
        planner = Planner(request.settings)
        rounds = decode(self._draft, self._target, planner, request.session, request.tokens)
        async with aclosing(rounds):
            async for at in rounds:
                self._count(at, start)
                piece, reason = self._piece(at)
                self.output += piece.tokens
                if reason is not None:
                    stats = self._stats(self._clock() - start)
                    yield Chunk(piece.text, piece.tokens, reason, stats, info)
                    return
                if piece.tokens:
                    yield Chunk(piece.text, piece.tokens, prompt=info)
                    info = None

    def _piece(self, at: Round) -> tuple[Piece, FinishReason | None]:
        piece = self._stream.push(at.verdict.tokens)
        if piece.is_stopped:
            return piece, FinishReason.STOP
        reason = at.verdict.finish_reason
        if reason is None:
            return piece, None
        rest = self._stream.finish()
        whole = Piece(piece.text + rest.text, piece.tokens + rest.tokens)
        return whole, reason

    def _count(self, at: Round, start: float) -> None:
        if self._first_s is None:  # the prompt's own round
            self._first_s = self._clock() - start
            self._num_cached = at.verdict.num_cached
            self._draft.spent, self._target.spent = Spent(), Spent()
            return
        if at.proposal.fallback is not None:
            self._outcomes.record_fallback(at.proposal.fallback)
        tree = at.proposal.tree
        num_roots = len(at.plan.roots) if len(tree) else 0
        depth = max(tree.depths(), default=0) - (1 if num_roots else 0)
        accepted = max(at.verdict.num_accepted - (1 if num_roots else 0), 0)
        self._outcomes.record(
            len(tree) - num_roots, depth, num_accepted=accepted, stopped_by=at.proposal.stopped_by
        )
        copied = num_copied_accepted(at.proposal, at.verdict)
        self._outcomes.record_lookup(at.proposal.num_copied, num_accepted=copied)

    def _stats(self, elapsed_s: float) -> RequestStats:
        settings = self._request.settings
        first_s = self._first_s or 0.0
        draft, target = self._draft.spent, self._target.spent
        return RequestStats(
            num_prompt_tokens=len(self._request.tokens),
            num_cached_tokens=self._num_cached,
            num_output_tokens=len(self.output),
            timings=Timings(
                first_s,
                elapsed_s - first_s,
                draft.elapsed_s,
                target.elapsed_s,
                draft.service_s,
                draft.engine_s,
                draft.kv_wait_s,
                target.service_s,
                target.engine_s,
                draft.serialisation_s + target.serialisation_s,
            ),
            speculation=self._outcomes.summary(
                num_spec_tokens=settings.longest_path,
                lossless=settings.verification.is_lossless,
            ),
        )

"""One request in this process: rounds in, chunks of text and statistics out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slipstream.client.engine import Drafter, Engine
from slipstream.client.inline import iterated
from slipstream.client.results import Chunk, RequestStats, Timings
from slipstream.client.timing import Clock, TimedDraft, TimedTarget
from slipstream.core.loop import Round, decode
from slipstream.core.planner import Planner, Settings
from slipstream.core.stats import Outcomes
from slipstream.core.text import Piece, TextStream
from slipstream.core.types import FinishReason, Session


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request: token ids, limits and settings."""

    session: Session
    tokens: tuple[int, ...]
    settings: Settings
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class _Progress:
    """What a running request has seen so far."""

    first_s: float | None = None
    outcomes: Outcomes = field(default_factory=Outcomes)


class Run:
    """A request on its way. Iterate it once; `output` then holds the final token ids."""

    def __init__(self, engine: Engine, drafter: Drafter, request: Request, clock: Clock) -> None:
        self._engine = engine
        self._request = request
        self._clock = clock
        self._draft = TimedDraft(drafter.draft, clock)
        self._target = TimedTarget(engine.target, clock)
        self._stream = TextStream(self._text, request.stop)
        self.output: list[int] = []

    def chunks(self) -> Iterator[Chunk]:
        """Chunks as they become final; the last one carries the reason and the statistics."""
        session, tokens = self._request.session, self._request.tokens
        num_cached = self._engine.target.num_cached(session.session_id, tokens)
        progress = _Progress()
        start = self._clock()
        rounds = iterated(
            decode(self._draft, self._target, Planner(self._request.settings), session, tokens)
        )
        for at in rounds:
            self._count(progress, at, start)
            piece, reason = self._piece(at)
            self.output += piece.tokens
            if reason is not None:
                rounds.close()
                stats = self._stats(progress, num_cached, self._clock() - start)
                yield Chunk(piece.text, piece.tokens, reason, stats)
                return
            if piece.tokens:
                yield Chunk(piece.text, piece.tokens)

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._engine.tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

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

    def _count(self, progress: _Progress, at: Round, start: float) -> None:
        if progress.first_s is None:
            progress.first_s = self._clock() - start
            self._draft.elapsed_s = self._target.elapsed_s = 0.0
            return
        tree = at.proposal.tree
        num_roots = len(at.plan.roots) if len(tree) else 0
        depth = max(tree.depths(), default=0) - (1 if num_roots else 0)
        accepted = max(at.verdict.num_accepted - (1 if num_roots else 0), 0)
        progress.outcomes.record(
            len(tree) - num_roots, depth, num_accepted=accepted, stopped_by=at.proposal.stopped_by
        )

    def _stats(self, progress: _Progress, num_cached: int, elapsed_s: float) -> RequestStats:
        settings = self._request.settings
        first_s = progress.first_s or 0.0
        return RequestStats(
            num_prompt_tokens=len(self._request.tokens),
            num_cached_tokens=num_cached,
            num_output_tokens=len(self.output),
            timings=Timings(
                first_s, elapsed_s - first_s, self._draft.elapsed_s, self._target.elapsed_s
            ),
            speculation=progress.outcomes.summary(
                num_spec_tokens=settings.max_draft_tokens,
                lossless=settings.verification.is_lossless,
            ),
        )

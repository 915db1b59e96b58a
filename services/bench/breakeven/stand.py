"""The engines that are measured, behind their ports: a real target, and a real draft if any."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from slipstream.bench.breakeven.crowd import AllOffered
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.ports import Draft, Target
from slipstream.core.request import NO_DRAFTER, DraftFacts
from slipstream.draft.batcher import BatchedDraft
from slipstream.draft.build import Drafter
from slipstream.draft.engine import LocalDraft
from slipstream.engine.thread import EngineThread
from slipstream.target.batcher import BatchedTarget, BatchLimits
from slipstream.target.works import Step
from slipstream.text.prompts import encode_prompt


@dataclass(frozen=True, slots=True)
class Real:
    """A draft that computes, and what it says of itself."""

    draft: Draft
    facts: DraftFacts


@dataclass(frozen=True, slots=True)
class Stand:
    """A target, the steps that it has made, what it is asked, and the draft that goes with it."""

    target: Target
    prompts: tuple[tuple[int, ...], ...]
    vocab_size: int
    stop_token_ids: frozenset[int] = frozenset()
    real: Real | None = None
    steps: list[Step] = field(default_factory=list)

    def prompts_of(self, first: int, count: int) -> list[tuple[int, ...]]:
        """So many prompts, from the one with that number on, and over again."""
        return [self.prompts[(first + at) % len(self.prompts)] for at in range(count)]


@asynccontextmanager
async def open_stand(
    target: str, draft: str, options: EngineOptions, texts: Sequence[str]
) -> AsyncGenerator[Stand, None]:
    """Load both models by name; `draft` none goes without. See `Engine.load`."""
    thread = EngineThread("slipstream-engine")
    try:
        engine, drafter = thread.call(lambda: _load(target, draft, options))
        steps: list[Step] = []
        batched = BatchedTarget(
            engine.target, thread, BatchLimits(engine.rows), on_step=steps.append
        )
        yield Stand(
            AllOffered(batched),
            tuple(encode_prompt(engine.text, text) for text in texts),
            engine.facts.vocab_size,
            engine.facts.stop_token_ids,
            _real(drafter, thread),
            steps,
        )
        await batched.close()
    finally:
        thread.close()


def _load(target: str, draft: str, options: EngineOptions) -> tuple[Engine, Drafter]:
    engine = Engine.load(target, options)
    return engine, engine.drafter(draft)


def _real(drafter: Drafter, thread: EngineThread) -> Real | None:
    if drafter.kind == NO_DRAFTER:
        return None
    draft = drafter.draft
    shared = BatchedDraft(draft, thread) if isinstance(draft, LocalDraft) else draft
    return Real(shared, drafter.facts)

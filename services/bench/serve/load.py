"""A plan and the client that it goes through: how a question becomes a request."""

from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.bench.questions import Question
from slipstream.bench.serve.arms import Arm
from slipstream.bench.serve.arrivals import Pace, Send
from slipstream.bench.serve.plan import ServePlan
from slipstream.bench.serve.request import Ask, GoesOn, always, send
from slipstream.bench.serve.sample import Sample
from slipstream.client import AsyncClient

Advance = Callable[[str], None]
"""Told the name of an arm whenever it has run."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be measured, through whom, and how time passes."""

    plan: ServePlan
    client: AsyncClient
    advance: Advance
    pace: Pace = field(default_factory=Pace)

    def ask(self, question: Question, arm: Arm, *, most: int | None = None) -> Ask:
        """A question as it is sent; `most` tokens where that is less than the plan's."""
        limit = self.plan.max_new_tokens
        return Ask(
            question.question_id,
            question.turns[0],
            limit if most is None else min(most, limit),
            self.plan.sampling,
            arm.options,
        )

    def sender(self, arm: Arm, *, most: int | None = None) -> Send:
        """Sends questions for one arm."""

        async def ask(question: Question, due_s: float) -> Sample:
            return await self.send(self.ask(question, arm, most=most), due_s)

        return ask

    async def send(self, ask: Ask, due_s: float, *, goes_on: GoesOn = always) -> Sample:
        """Send a request now, for a user who came at `due_s`."""
        clock = self.pace.clock
        return await send(self.client, ask, due_s=due_s, clock=clock, goes_on=goes_on)

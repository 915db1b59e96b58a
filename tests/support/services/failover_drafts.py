"""A failover draft with scripted replicas behind it, and a clock that tests move."""

from slipstream.core.failover.breaker import BreakerLimits, Breakers, Failures, InUse
from slipstream.core.failover.failover_draft import FailoverDraft
from slipstream.core.sequence import Delta
from slipstream.core.tree import TokenTree
from slipstream.core.types import Plan, Proposal, Session
from support.models.deltas import ByDeltas

PLAN = Plan(max_depth=4, max_nodes=6)
SESSION = Session("s", num_prompt_tokens=3, max_tokens=20)


class Guesser:
    """A draft that answers what it was given, and remembers what it was told."""

    def __init__(self, name, *answers):
        self.name = name
        self.answers = list(answers)
        self.texts = []
        self.is_released = False
        self.parked_for = None

    async def propose(self, sequence, plan):
        self.texts.append([*sequence.tokens])
        answer = self.answers.pop(0) if self.answers else Proposal(TokenTree.chain([1]))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def park(self, ttl_s):
        self.parked_for = ttl_s
        if self.answers:
            raise self.answers.pop(0)

    async def release(self, session_id):
        self.is_released = True


class World:
    """A failover draft, the replicas that it may use, one after the other, and a clock."""

    def __init__(self, *guessers):
        self.now = 0.0
        self.remaining = None
        self.waiting = list(guessers)
        at_once = BreakerLimits(failures=1)
        self.excluded = []
        self.crowded = set()
        self.checked = []
        self.shared = Breakers(lambda: self.now, at_once)
        failures = Failures(Breakers(lambda: self.now, at_once), self.shared)
        self.draft = FailoverDraft(
            self.choose, failures, vocab_size=50, remaining=lambda: self.remaining, leave=self.leave
        )
        self._caller = ByDeltas(self.draft)

    def leave(self, name, excluded):
        self.checked.append((name, set(excluded)))
        return name in self.crowded

    def choose(self, excluded):
        self.excluded.append(set(excluded))
        fitting = [at for at in self.waiting if at.name not in excluded]
        if not fitting:
            return None
        self.waiting.remove(fitting[0])
        return InUse(fitting[0].name, fitting[0], fitting[0].park)

    async def round(self, start, *tokens, plan=PLAN, session=SESSION):
        return await self._caller.propose(session, Delta(start, tokens), plan)

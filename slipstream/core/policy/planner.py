"""Plans of rounds: how much to draft, and of what shape. Pure."""

from dataclasses import replace
from itertools import accumulate

from slipstream.core.policy.backoff import Backoff, DraftUse
from slipstream.core.policy.options import Mode, num_product_nodes
from slipstream.core.policy.profile import Settings
from slipstream.core.round import LATE, NO_PLAN, TOO_DEAR, Round
from slipstream.core.row_costs import Average, Prices, step_worth
from slipstream.core.tree import Copying
from slipstream.core.types import Plan, ReplyTiming, Verdict, Verification

FIRST_PACE = 1.3
"""Tokens in the time of a plain round that are assumed before a request has had any."""
PACE_WEIGHT = 0.08
"""Weight of one round in the averages of tokens and, apart, of the time that they take."""
DRAFTED_TOKENS = 2.4
"""Tokens that are assumed of a round with a draft model."""
ACCEPTANCE = 0.6
"""Share of a chain's tokens that is assumed to hold, each behind the one before."""
READ_SHARE, READ_TOKENS = 1.5, 192
"""Time in which a draft reads a prompt, over the target's and the cost of a draft step; and how
many tokens of a long one it computes, about."""
USUAL_TOKENS = 256
"""Most tokens that are counted on to be left: most answers end long before their limit."""
_LONGEST_ROUND = 1e6
"""Plain rounds that a round may take, as far as it is believed."""
SHORTEST_WAIT_S = 0.1
"""Least time to wait for a proposal: the scheduler of a busy machine may take as long."""
SURE = 0.8
"""Probability of copies to have the next token that spares the draft: four are kept in a row."""
LOOKUP_S = 2e-4
"""Seconds of looking copies up that are assumed before any was timed."""
SAMPLED_COPIES = 1.1
"""Gain that is assumed of copies in sampled text, which repeats itself less."""
FORGET = 0.98
"""Share of a way between services that each request keeps of what former ones measured."""
MANY_FORCED = 4
"""Forced tokens with which the draft is not asked as well: they are all but certain."""


class Planner:
    """Plans the rounds of one request."""

    def __init__(self, settings: Settings, *, num_prompt_tokens: int = 0) -> None:
        self._settings, self._num_prompt_tokens = settings, num_prompt_tokens
        draft, history = settings.draft, settings.draft.history
        copied = history(("copies", settings))
        copied.has_paid = True  # it is seldom that copies pay, but then they pay much
        self._backoff, self._copies = Backoff(history(settings)), Backoff(copied, tolerance=1.0)
        self._tokens, self._time, self._drafted = (
            Average(first, num_values=3, weight=PACE_WEIGHT)
            for first in (FIRST_PACE, 1.0, DRAFTED_TOKENS)
        )
        self._use, self._has_begun = DraftUse(), False
        self._prompt_s, self._lookup_s = 0.0, LOOKUP_S
        ways = self._ways = draft.ways
        self._prices = Prices(
            step_cost=draft.profile.step_cost,
            row_cost=draft.profile.row_cost,
            step_s=draft.step_s,
            target_way_s=ways.granted_s,
            are_granted=ways.granted_s is not None,
        )

    def plan(self, remaining: int, verdict: Verdict) -> Plan:
        """The next round after `verdict`, with `remaining` tokens until the request's limit.

        A plan of depth 0 is a plain round: when speculation is off, does not pay, has no rows
        to spare, or when the target's own token is the last one allowed. Where many tokens are
        `forced` the draft is spared, and else leaves room for them.
        """
        self._prices.take(verdict.offer)
        self._begin()
        if self._settings.verification is Verification.TARGET_INIT:
            return self._forest(remaining, verdict)
        num_forced = len(self.forced(remaining, verdict))
        nodes = self._free_nodes(verdict) - num_forced
        if num_forced >= MANY_FORCED or (num_forced and nodes < 1):
            return NO_PLAN
        most = self._settings.max_draft_tokens
        depth = min(most, remaining - 1, self._fitting_depth(nodes))
        copying = self._copying(min(nodes, remaining - 1))
        if depth < 1 or not self._speculates(remaining, copying):
            return self._without_draft(nodes, copying)
        return self._shaped(depth, nodes, copying=copying)

    def leaves_draft(self, plan: Plan, remaining: int) -> bool:
        """Return whether to end the draft's session before this plan's round: see `DraftUse`."""
        num_rounds = 0 if plan.may_ask else 1 + self._backoff.num_left
        return self._use.ends(num_rounds, remaining, self._opening_cost if num_rounds else 0.0)

    def forced(self, remaining: int, verdict: Verdict) -> tuple[int, ...]:
        """Return the tokens that a grammar forces behind `verdict`, as many as may be proposed."""
        settings = self._settings
        is_exact = settings.verification is Verification.EXACT
        if not verdict.forced or settings.mode is Mode.OFF or not is_exact:
            return ()
        limit = min(self._free_nodes(verdict), remaining - 1, settings.longest_path)
        return verdict.forced[: max(limit, 0)]

    def record(self, round_: Round) -> None:
        """Learn from a round: how fast the request goes, and whether the draft, or looking copies
        up, is worth its time."""
        asked = 0.0
        if round_.index == 0:
            num_new = self._num_prompt_tokens - round_.verdict.num_cached
            self._prompt_s = round_.verifying_s * min(READ_TOKENS / max(num_new, 1), 1.0)
        else:
            asked = self._record_way(round_)
        if round_.verdict.finish_reason is not None:
            self._backoff.end()
            self._copies.end()
        elif round_.proposal.fallback in (None, LATE):  # neither cut short nor without its draft
            self._record_gains(round_, asked)

    def _record_gains(self, round_: Round, asked: float) -> None:
        """Learn from a round like others, whose way took `asked` plain rounds more than needed."""
        proposal, num_tokens = round_.proposal, len(round_.verdict.tokens)
        depth = max(proposal.drafted.depths(), default=0)
        cost = self._prices.round(len(proposal.tree))
        is_drafted = depth > 0 or proposal.stopped_by == TOO_DEAR or proposal.fallback == LATE
        is_copying = round_.plan.lookup is not None and round_.verdict.proposal is None
        if depth:
            self._drafted.record(num_tokens)
        if is_drafted:
            cost += self._drafting_cost(round_, max(depth, 1))
        elif is_copying:
            cost += self._prices.waited(round_.proposing_s) + asked
        cost = min(cost, _LONGEST_ROUND)
        self._tokens.record(num_tokens)
        self._time.record(cost)
        if is_drafted:
            self._record_draft(round_, num_tokens / cost)
        if is_copying:
            self._record_copies(round_, cost, is_drafted=is_drafted)

    def _record_way(self, round_: Round) -> float:
        """Learn the way of a verification; return the plain rounds beyond a granted one."""
        verdict = round_.verdict
        is_granted, engine_s = verdict.proposal is not None, _engine_s(verdict.timing)
        asked = self._prices.verified(round_.verifying_s, engine_s, is_granted=is_granted)
        if is_granted:
            self._ways.granted_s = self._prices.target_way_s
        if asked:
            self._ways.asked_s = asked * (self._prices.round_s or 0.0)
        return asked

    def _drafting_cost(self, round_: Round, depth: int) -> float:
        """Return the plain rounds that a proposal took; only one that was drafted and waited for
        says what a draft step takes, and the first one reads the text as well."""
        if round_.proposal.fallback == LATE:
            return self._prices.waited(round_.proposing_s)
        seconds = round_.proposing_s if self._use.is_open and round_.proposing else None
        cost = self._prices.drafted(depth, seconds, _engine_s(round_.proposal.timing))
        self._ways.draft_s = self._prices.draft_way_s or self._ways.draft_s
        return cost

    def _record_draft(self, round_: Round, gain: float) -> None:
        waited, was_open = self._prices.waited(round_.proposing_s), self._use.is_open
        if self._use.answers(waited, is_late=round_.proposal.fallback == LATE):
            self._backoff.record(gain, 0.0 if was_open else self._use.opening)
        if self._use.is_open and not was_open:
            self._ways.opening_s = round_.proposing_s

    def _record_copies(self, round_: Round, cost: float, *, is_drafted: bool) -> None:
        """Learn what a round of this cost gained by the copies in it."""
        tree, num_tokens, own = round_.proposal.tree, len(round_.verdict.tokens), 1.0
        if is_drafted:
            less = self._prices.round(len(tree) - len(round_.proposal.sources))
            less -= self._prices.round(len(tree)) + self._prices.waited(self._lookup_s)
            own = (num_tokens - len(round_.accepted_sources)) / max(cost + less, 1.0)
        else:
            self._lookup_s = round_.proposing_s
        self._copies.record(num_tokens / cost / own)

    def _begin(self) -> None:
        """Expect of the draft, and of copies, at first what they cost here."""
        if self._has_begun:
            return
        self._has_begun = True
        settings, prices, ways = self._settings, self._prices, self._ways
        way, asked = prices.waited(ways.draft_s), prices.waited(ways.asked_s)
        tokens = accumulate(ACCEPTANCE**n for n in range(settings.max_draft_tokens + 1))
        gains = [kept / (prices.round(n) + n * prices.step + way) for n, kept in enumerate(tokens)]
        self._backoff.expect(max(gains[1:]))
        first = SAMPLED_COPIES if settings.is_sampled else Backoff.FIRST_GAIN
        self._copies.expect(first / (1 + asked))
        ways.draft_s, ways.asked_s = FORGET * ways.draft_s, FORGET * ways.asked_s

    def _copying(self, limit: int) -> Copying | None:
        copying, mode = self._settings.lookup, self._settings.mode
        if copying is None or limit < 1 or (mode is Mode.AUTO and not self._copies.allows()):
            return None
        return Copying(copying.shortest, min(copying.max_depth, limit), SURE)

    def _row_prices(self, nodes: int) -> tuple[float, ...]:
        """Return each node's price in tokens; forced speculation has its shape at any cost."""
        if self._settings.mode is Mode.FORCED:
            return ()
        return self._prices.nodes(nodes, self._speed)

    @property
    def _worth_s(self) -> float | None:
        """Seconds in which plain rounds bring what is expected of a proposal; None: unknown.

        Speculation that is forced waits, and target-initialised roots can't do without.
        """
        settings, round_s = self._settings, self._prices.round_s
        waits = settings.mode is Mode.FORCED or settings.verification is Verification.TARGET_INIT
        if round_s is None or waits:
            return None
        return max(self._drafted.value / self._speed * round_s, SHORTEST_WAIT_S)

    @property
    def _speed(self) -> float:
        """Tokens that come about in the time of a plain round, as this request goes."""
        return max(self._tokens.value / self._time.value, 1.0)

    def _speculates(self, remaining: int, copying: Copying | None) -> bool:
        """Return whether to ask the draft, which has to gain more than copies alone do."""
        if self._settings.mode is Mode.AUTO:
            is_copying = copying is not None and self._copies.gain > self._backoff.gain
            return not is_copying and self._may_read(remaining) and self._backoff.allows()
        return self._settings.mode is Mode.FORCED

    def _may_read(self, remaining: int) -> bool:
        """Return whether what is left gains what the draft takes to read the prompt, which it does
        with its first proposal."""
        spare = 1 / Backoff.TOLERANCE - 1 / max(self._backoff.gain, 1.0)
        return self._use.is_asked or self._opening_cost <= min(remaining, USUAL_TOKENS) * spare

    @property
    def _opening_cost(self) -> float:
        """Plain rounds that the draft takes to read the text, as estimated and as measured."""
        read = READ_SHARE * self._prices.step * self._prices.waited(self._prompt_s)
        return max(read, self._use.opening, self._prices.waited(self._ways.opening_s))

    def _fitting_depth(self, nodes: int) -> int:
        widths = self._settings.widths
        if not widths:
            return nodes
        depths = range(len(widths) + 1)
        return max(depth for depth in depths if num_product_nodes(widths[:depth]) <= nodes)

    def _free_nodes(self, verdict: Verdict) -> int:
        """Nodes that cost the target nothing; forced speculation has one in any case."""
        if verdict.offer is None:
            return self._settings.max_nodes
        least = 1 if self._settings.mode is Mode.FORCED else 0
        return min(self._settings.max_nodes, max(verdict.offer.rows - 1, least))

    def _forest(self, remaining: int, verdict: Verdict) -> Plan:
        """Chains under the roots. Their own level needs no drafting, and no round goes without:
        a position whose roots are drawn can't be decoded plainly."""
        roots = verdict.roots
        nodes = max(self._free_nodes(verdict), len(roots))
        depth = min(1 + self._settings.max_draft_tokens, remaining, nodes // max(len(roots), 1))
        return self._shaped(max(depth, 1), nodes, roots)

    def _without_draft(self, nodes: int, copying: Copying | None) -> Plan:
        """A plain round, or one in which only copies are proposed: they cost no draft's time."""
        if copying is None:
            return NO_PLAN
        prices, copying = self._row_prices(nodes), replace(copying, alone=0.0)
        return Plan(copying.max_depth, nodes, lookup=copying, row_prices=prices)

    def _shaped(
        self, depth: int, nodes: int, roots: tuple[int, ...] = (), copying: Copying | None = None
    ) -> Plan:
        settings, prices = self._settings, self._row_prices(nodes)
        worth = step_worth(self._speed * self._prices.step, prices) if prices else None
        form = settings.shape, settings.stop, settings.threshold, settings.widths[:depth], roots
        return Plan(depth, nodes, *form, copying, worth, prices, self._worth_s)


def _engine_s(timing: ReplyTiming | None) -> float | None:
    """Return the seconds of a reply in its engine, waiting for others included."""
    return None if timing is None else timing.engine_s + timing.queue_s

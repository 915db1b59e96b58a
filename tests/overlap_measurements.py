"""Figures of docs/benchmarks.md: rounds whose verdict a draft has in its tree, by the tree's size.

python tests/overlap_measurements.py smollm2-135m PROMPTS 12

Runs in one process, where no draft is waited for: every proposal is what is left of the tree before
it, if anything is, and the tree goes on from each proposal with the sizes of the row.
"""

import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.draft.ahead import MAX_TREES, AheadTree
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.policy.planner import Planner
from slipstream.core.request.options import Mode, SpeculationOptions
from slipstream.core.request.prompt import PromptForm
from slipstream.core.request.request import draft_settings
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Session
from slipstream.draft import engine as draft_engine
from slipstream.draft import growth_ahead
from slipstream.draft.request import DraftRequest
from slipstream.text.prompts import encode_prompt

SIZES = [(1, 4, 4, 24), (2, 4, 6, 48), (2, 10, 6, 64), (2, 10, 10, 120), (2, 20, 10, 120)]
"""Steps at a time, nodes that each of them scores, candidates of a node, nodes that are held."""
NUM_TOKENS = 48


class Overlapped:
    """A draft whose trees go on after every proposal, and are read before the next."""

    def __init__(self, draft, num_nodes):
        self._draft, self._num_nodes = draft, num_nodes
        self._held = None
        self.kind = ""
        """What the last proposal is: new, or the rest of a tree."""

    async def propose(self, sequence, plan):
        """See `core.ports.Draft.propose`."""
        proposal = await self._draft.propose(sequence, replace(plan, ahead=self._num_nodes))
        self.kind = "new"
        if self._held is not None and self._held[0] is sequence:
            rest = self._held[2].below(sequence.tokens[self._held[1] :], plan)
            self.kind, proposal = ("rest", rest) if rest else ("new", proposal)
        for _ in range(MAX_TREES):
            request = DraftRequest(sequence, Plan(0, 0, ahead=self._num_nodes), is_ahead=True)
            self._draft.begin(request)
            while not request.is_done:
                self._draft.step([request])
        self._held = (sequence, len(sequence), AheadTree.of(request.result()))
        return proposal


def measure(engine, drafter, prompts, sizes):
    """Return rounds by the kind of their proposal, and their tokens."""
    growth_ahead.NUM_STEPS, growth_ahead.WIDTH, num_candidates, num_nodes = sizes
    growth_ahead.NUM_CANDIDATES = draft_engine.NUM_CANDIDATES = num_candidates
    draft, rounds, tokens = Overlapped(drafter.draft, num_nodes), Counter(), Counter()
    options = SpeculationOptions(mode=Mode.FORCED, lookup=False)
    settings, stops = draft_settings(options, drafter.facts), engine.facts.stop_token_ids
    for number, prompt in enumerate(prompts):
        session = Session(f"{number}", len(prompt), NUM_TOKENS, stop_token_ids=stops)
        sequence, planner = TokenSequence(session, prompt), Planner(settings)
        running = decode(draft, engine.target, planner, sequence, clock=time.perf_counter)
        for at in iterated(running):
            if at.index > 0 and at.verdict.finish_reason is None:
                rounds[draft.kind] += 1
                tokens[draft.kind] += len(at.verdict.tokens)
        finished(engine.target.release(session.session_id))
        finished(drafter.draft.release(session.session_id))
    return rounds, tokens


def main(model, path, number):
    """Print a row for each size of trees."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    texts = [line["turns"][0] for line in lines[:: max(1, len(lines) // int(number))]]
    engine = Engine.load(model, EngineOptions())
    drafter = engine.drafter("glide")
    prompts = [encode_prompt(engine.text, text, PromptForm()) for text in texts[: int(number)]]
    for sizes in SIZES:
        rounds, tokens = measure(engine, drafter, prompts, sizes)
        means = {kind: f"{tokens[kind] / rounds[kind]:.2f} tokens" for kind in rounds}
        sys.stdout.write(f"{sizes}: {rounds['rest'] / rounds.total():.0%} of rounds; {means}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Drafting from learned texts on a tiny target: the text is the same whatever a memory holds."""

import random

import pytest

import tiny
from slipstream.core.inline import finished, iterated
from slipstream.core.ngram_sources import LATEST
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.request import Ask, DraftFacts, make_request
from slipstream.core.run import Run
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, Shape
from slipstream.ngrams.memory import LearnedTexts
from tiny_runs import FACTS, PROMPT, Letters

NUM_TOKENS = 60
ASKS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, seed=5),
}


class MemoryDraft:
    """Proposes chains out of a memory, and nothing else."""

    def __init__(self, memory):
        self._memory = memory
        self._tokens = []

    async def propose(self, session, delta, plan):
        self._tokens[delta.start :] = delta.tokens
        latest, chain = tuple(reversed(self._tokens[-LATEST:])), []
        while len(chain) < plan.max_depth and (found := self._memory.after(latest)) is not None:
            chain.append(found[0])
            latest = (found[0], *latest[: LATEST - 1])
        return Proposal(TokenTree.chain(chain))

    async def release(self, session_id):
        self._tokens.clear()


def run_with(memory, sampling):
    """The output of a request that is drafted from a memory, and how much of that was accepted."""
    speculation = SpeculationOptions(mode=Mode.FORCED, shape=Shape.CHAIN, lookup=False)
    ask = Ask(sampling=sampling, max_tokens=NUM_TOKENS, speculation=speculation)
    request = make_request("s", PROMPT, ask, FACTS, DraftFacts("vanilla"))
    engine = tiny.local_target(tiny.causal())
    run = Run(MemoryDraft(memory), engine, request, text=Letters(), clock=lambda: 0.0)
    *_, last = iterated(run.chunks())
    finished(engine.release("s"))
    return tuple(run.output), last.stats.speculation.num_accepted_draft_tokens


def garbage(output):
    """A memory that proposes a wrong token everywhere, and noise."""
    memory, text, draw = LearnedTexts(1 << 20), (*PROMPT, *output), random.Random(0)
    for at in range(len(text) - 3):
        memory.learn((*text[at : at + 3], (text[at + 3] + 1) % tiny.VOCAB, 1, 2))
    memory.learn(draw.choices(range(tiny.VOCAB), k=5000))
    return memory


@pytest.mark.parametrize("sampling", ASKS.values(), ids=ASKS)
def test_a_memory_of_the_text_is_accepted_and_one_of_garbage_changes_nothing(sampling):
    output, num_accepted = run_with(LearnedTexts(1 << 20), sampling)
    assert num_accepted == 0
    memory = LearnedTexts(1 << 20)
    memory.learn((*PROMPT, *output))
    again, num_accepted = run_with(memory, sampling)
    assert again == output
    assert num_accepted > NUM_TOKENS // 2
    assert run_with(garbage(output), sampling)[0] == output

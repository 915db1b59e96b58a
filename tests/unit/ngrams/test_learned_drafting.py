"""Drafting from learned texts on a tiny target: the text is the same whatever a memory holds."""

import random
from types import SimpleNamespace

import pytest

from slipstream.core.draft.ngram_draft import NgramDraft
from slipstream.core.draft.ngram_sources import NgramSources
from slipstream.core.inline import finished, iterated
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.profile import NGRAM
from slipstream.core.request.request import Ask, make_request
from slipstream.core.run import Run
from slipstream.core.types import SamplingParams
from slipstream.ngrams.memory import LearnedTexts
from support.models import tiny
from support.models.tiny_runs import FACTS, PROMPT, Letters

NUM_TOKENS = 60
ASKS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.9, seed=5)}


def run_with(memory, sampling):
    """The output of a request that is drafted from a memory, and how much of that was accepted."""
    speculation = SpeculationOptions(mode=Mode.FORCED)
    ask = Ask(sampling=sampling, max_tokens=NUM_TOKENS, speculation=speculation)
    request = make_request("s", PROMPT, ask, FACTS, NGRAM)
    engine = tiny.local_target(tiny.causal())
    draft = NgramDraft(NgramSources(memory=memory))
    run = Run(
        SimpleNamespace(draft=draft, target=engine), request, text=Letters(), clock=lambda: 0.0
    )
    *_, last = iterated(run.chunks())
    finished(engine.release("s"))
    return tuple(run.output), last.stats.speculation


def garbage(output):
    """A memory that proposes a wrong token everywhere, and noise."""
    memory, text, draw = LearnedTexts(1 << 20), (*PROMPT, *output), random.Random(0)
    for at in range(len(text) - 3):
        memory.learn((*text[at : at + 3], (text[at + 3] + 1) % tiny.VOCAB, 1, 2))
    memory.learn(draw.choices(range(tiny.VOCAB), k=5000))
    return memory


@pytest.mark.parametrize("sampling", ASKS.values(), ids=ASKS)
def test_a_memory_of_the_text_is_accepted_and_one_of_garbage_changes_nothing(sampling):
    output, speculation = run_with(LearnedTexts(1 << 20), sampling)
    assert speculation.num_learned_tokens == 0
    memory = LearnedTexts(1 << 20)
    memory.learn((*PROMPT, *output))
    again, speculation = run_with(memory, sampling)
    assert again == output
    assert speculation.num_accepted_learned_tokens > 0
    assert speculation.num_accepted_draft_tokens > NUM_TOKENS // 2
    assert run_with(garbage(output), sampling)[0] == output

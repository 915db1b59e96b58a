"""Speculation changes no token: every draft, shape and stop policy, greedy and sampled.
On tiny models with random weights, in float32 and, with invariant numerics, in bfloat16."""

import itertools
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import pytest
import torch

from slipstream.core.draft.ngram_draft import LookupDraft, NgramDraft
from slipstream.core.policy.backoff import DraftUse
from slipstream.core.policy.options import DRAFTERS, Mode, SpeculationOptions
from slipstream.core.policy.profile import Profile
from slipstream.core.types import SamplingParams, Session, Shape, StopPolicy, Verification
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.models.causal_scorer import CausalScorer
from slipstream.models.glide.load import glide_chains
from slipstream.train.decision import DecisionNetwork
from support.models import tiny, tiny_eagle
from support.models.rounds import DEFAULTS, next_token, plain, speculate

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SAMPLINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=1.0, seed=11),
    "everything": SamplingParams(
        **{"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "seed": 2**64 - 1},
        **{"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
        logit_bias=((3, 1.5), (7, -2.0)),
    ),
}
SHAPES = [shape for shape in Shape if shape is not Shape.FORK]
# The first prompt repeats itself, so that prompt lookup finds something; the second is long
# enough for rows to cross positions 127 and 128.
PROMPTS = [tiny.tokens(6) * 3, tiny.tokens(118, seed=4)]
MAX_TOKENS = 16


class World:
    def __init__(self, dtype):
        model = tiny.causal(dtype=dtype, hidden_layers=tiny_eagle.LAYERS)
        self.target = tiny.local_target(model, free_rows=24)
        torch.manual_seed(1)
        # The target itself with fast numerics: a draft that is nearly always right.
        twin = CausalScorer(tiny.causal(dtype=dtype, numerics="fast"))
        twin_decision = DecisionNetwork(twin.hidden_size, 8).model()
        self.drafts = {
            "glide": self._reading(tiny.glide(dtype=dtype)),
            "eagle3": self._reading(tiny_eagle.head(dtype=dtype)),
            "vanilla": LocalDraft(twin, decision=twin_decision.score),
            "ngram": NgramDraft(),
        }
        self._plain = {}

    def _reading(self, scorer):
        decision = DecisionNetwork(scorer.hidden_size, 8).model()
        chains = glide_chains(scorer, 2048, decision, DEFAULTS)
        feed = TargetKv(self.target, scorer.layers)
        return LocalDraft(scorer, feed, decision=decision.score, chains=chains)

    def plain(self, index, sampling):
        key = (index, sampling)
        if key not in self._plain:
            asked = {"sampling": SAMPLINGS[sampling], "max_tokens": MAX_TOKENS}
            out = plain(self.target, PROMPTS[index], **asked)
            assert out.num_drafted == 0
            self._plain[key] = out.tokens
        return self._plain[key]

    def speculate(self, kind, index, sampling, options, profile=DEFAULTS):
        asked = {"sampling": sampling, "options": options, "max_tokens": MAX_TOKENS}
        asked |= {"has_decision_model": True, "profile": profile}
        draft = LookupDraft(self.drafts[kind])
        return speculate(self.target, draft, kind, PROMPTS[index], **asked)


@pytest.fixture(scope="module", params=DTYPES)
def world(request):
    return World(DTYPES[request.param])


def options(shape, stop, **more):
    widths = (3, 2, 1) if shape is Shape.PRODUCT else None
    tree = {"shape": shape, "widths": widths, "max_nodes": 23}
    return SpeculationOptions(mode=Mode.FORCED, stop=stop, **tree, **more)


COMBINATIONS = [
    (kind, shape, stop)
    for kind, shape, stop in itertools.product(DRAFTERS, SHAPES, StopPolicy)
    if shape in DRAFTERS[kind].shapes and stop in DRAFTERS[kind].stops
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("kind", "shape", "stop"), COMBINATIONS)
def test_the_output_is_that_of_plain_decoding(world, kind, shape, stop, sampling):
    drafted = 0
    for index in range(len(PROMPTS)):
        out = world.speculate(kind, index, SAMPLINGS[sampling], options(shape, stop))
        assert out.tokens == world.plain(index, sampling)
        drafted += out.num_drafted
    assert drafted > 0, "inconclusive: nothing was drafted"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("kind", "shape"), [("glide", Shape.CAPE), ("eagle3", Shape.PRODUCT), ("vanilla", Shape.CHAIN)]
)
def test_copies_beside_a_draft_change_no_token_either(world, kind, shape, sampling):
    copied = 0
    asked = replace(options(shape, StopPolicy.FIXED), mode=Mode.AUTO)
    for step_cost in (0.0, 9.0):  # the draft is asked where no copy is sure, and never
        profile = Profile(lookup=1, step_cost=step_cost)
        out = world.speculate(kind, 0, SAMPLINGS[sampling], asked, profile=profile)
        assert out.tokens == world.plain(0, sampling)
        copied += sum(len(at.proposal.sources) for at in out.rounds)
        assert (out.num_drafted_by_the_draft > 0) == (step_cost == 0)
    assert copied > 0, "inconclusive: nothing was copied"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_that_is_the_target_is_accepted_to_the_end(world, shape):
    out = world.speculate("vanilla", 0, SAMPLINGS["greedy"], options(shape, StopPolicy.FIXED))
    assert out.num_accepted >= MAX_TOKENS // 2


@pytest.mark.parametrize("sampling", ["sampled", "everything"])
def test_noise_shared_with_the_target_makes_sampled_drafts_right(world, sampling):
    """Candidates coupled with the target's noise: a draft with its law draws its tokens."""
    chain = options(Shape.CHAIN, StopPolicy.FIXED)
    out = world.speculate("vanilla", 0, SamplingParams(temperature=1.0, seed=5), chain)
    assert out.num_accepted >= MAX_TOKENS // 2
    other = world.speculate("vanilla", 0, SAMPLINGS[sampling], chain)
    assert other.num_accepted > 0


@pytest.mark.parametrize("kind", ["glide", "eagle3", "vanilla"])
@pytest.mark.parametrize(
    ("verification", "shape"),
    [
        (Verification.MCSD, Shape.CHAIN),
        (Verification.MCSD, Shape.PRODUCT),
        (Verification.MCSD, Shape.CAPE),
        (Verification.MCSD_REPLACEMENT, Shape.PRODUCT),
        (Verification.TARGET_INIT, Shape.FORK),
    ],
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_other_verification_modes_finish_and_repeat(world, kind, verification, shape, sampling):
    asked = options(shape, StopPolicy.FIXED, verification=verification)
    runs = [world.speculate(kind, 0, SAMPLINGS[sampling], asked) for _ in range(2)]
    assert len(runs[0].tokens) == MAX_TOKENS
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].num_drafted > 0


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_no_stop_token_comes_before_the_least_number_of_tokens(world, kind, sampling):
    asked = {
        "sampling": replace(SAMPLINGS[sampling], min_tokens=9),
        "max_tokens": MAX_TOKENS,
        "stop_token_ids": frozenset(world.plain(0, sampling)[:6]),
    }
    modes = SpeculationOptions(mode=Mode.OFF), options(Shape.CHAIN, StopPolicy.FIXED)
    draft = world.drafts[kind]
    plainly, drafted = (
        speculate(world.target, draft, kind, PROMPTS[0], options=mode, **asked) for mode in modes
    )
    assert drafted.num_drafted > plainly.num_drafted == 0
    assert drafted.tokens == plainly.tokens
    assert len(plainly.tokens) >= 9
    assert asked["stop_token_ids"].isdisjoint(plainly.tokens[:9])


def test_a_session_moved_in_the_middle_goes_on_with_the_same_tokens(world):
    """Replay from 0 on an engine that has never heard of the session gives the same tokens."""
    for sampling in SAMPLINGS.values():
        out = plain(world.target, PROMPTS[1], sampling=sampling, max_tokens=MAX_TOKENS)
        other = tiny.local_target(world.target._model, free_rows=24)
        at = Session("moved", len(PROMPTS[1]), MAX_TOKENS, sampling)
        for length in (1, 9, 10, 11):
            told = (*PROMPTS[1], *out.tokens[:length])
            assert next_token(other, at, told) == out.tokens[length]


@dataclass
class Watched:
    """What a draft holds for the session when each round has its verdict."""

    draft: LocalDraft
    sizes: list = field(default_factory=list)

    def calling(self, round_, port):
        return nullcontext()

    def record(self, round_):
        self.sizes.append(self.draft.kv_bytes("s"))


@pytest.mark.parametrize("kind", ["glide", "eagle3"])
def test_a_draft_that_does_not_pay_holds_nothing_meanwhile_and_is_tried_again(world, kind):
    watched = Watched(world.drafts[kind])
    asked = {"sampling": SAMPLINGS["everything"], "max_tokens": 330}
    dear = {"options": SpeculationOptions(), "profile": Profile(step_cost=0.6, max_depth=4)}
    drafting = (world.target, watched.draft, kind, PROMPTS[0])
    out = speculate(*drafting, observer=watched, **dear, **asked)
    assert out.tokens == plain(world.target, PROMPTS[0], **asked).tokens
    runs = [(holds, len(list(run))) for holds, run in itertools.groupby(watched.sizes, bool)]
    assert len(runs) > 5
    assert all(holds or length >= DraftUse.SHORTEST for holds, length in runs[1:-1])

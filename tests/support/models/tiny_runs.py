"""Requests run on a tiny target and a draft that often agrees with it, in every way there is."""

from dataclasses import replace

import torch

from slipstream.core.draft.ngram_draft import LookupDraft, NgramDraft
from slipstream.core.inline import finished, iterated
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.request import ModelFacts, make_request
from slipstream.core.run import Run
from slipstream.core.types import Shape, Verification
from slipstream.drafting.engine import LocalDraft
from slipstream.models.causal_scorer import CausalScorer
from support.models import tiny
from support.models.in_memory import causal_model

FACTS = ModelFacts("tiny", tiny.VOCAB, 512, frozenset(), max_logprobs=MAX_LOGPROBS)
PROMPT = (7, 3, 9, 7, 3, 9, 7, 3)


def agreeing_models():
    """A target, and a draft that often agrees with it."""
    weights = tiny.hf_model()
    torch.manual_seed(1)
    with torch.no_grad():
        for values in weights.parameters():
            values.add_(torch.randn_like(values), alpha=0.03)
    return tiny.causal(), CausalScorer(causal_model(weights, numerics="fast"))


class Letters:
    """A letter for each token, but every fourth one has its text with the one after it."""

    def decode(self, ids):
        text = "".join(chr(ord("a") + token % 26) for token in ids)
        return text + "\ufffd" if ids and ids[-1] % 4 == 0 else text

    def token_bytes(self, token_id):
        return bytes([ord("a") + token_id % 26])


def run_of(models, ask, *, kind="vanilla", past=(), num_received=0, text=None, **how):
    """All chunks of a request on engines of its own."""
    target, scorer = models
    draft = LookupDraft(LocalDraft(scorer) if kind == "vanilla" else NgramDraft())
    request = make_request("s", PROMPT, ask, FACTS, DraftFacts(kind))
    request = replace(request, past=past, num_received=num_received)
    engine = tiny.local_target(target)
    run = Run(draft, engine, request, text=text or Letters(), clock=lambda: 0.0, **how)
    chunks = list(iterated(run.chunks()))
    for port in (draft, engine):
        finished(port.release("s"))
    return chunks


def speculating(**options):
    return SpeculationOptions(mode=Mode.FORCED, **options)


WAYS = {
    "chain": speculating(shape=Shape.CHAIN),
    "cape": speculating(shape=Shape.CAPE, lookup=False),
    "lookup": speculating(shape=Shape.CAPE, lookup=True),
    "product": speculating(shape=Shape.PRODUCT, widths=(3, 2, 1), lookup=False),
    "dynamic": speculating(shape=Shape.DYNAMIC, lookup=False),
    "mcsd": speculating(verification=Verification.MCSD),
    "replacement": speculating(verification=Verification.MCSD_REPLACEMENT),
    "roots": speculating(verification=Verification.TARGET_INIT),
    "off": SpeculationOptions(mode=Mode.OFF),
}

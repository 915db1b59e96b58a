"""Only draws from a softmax over a temperature may be made where the logits are."""

import pytest

from slipstream.core.types import SamplingParams, Session, Verification
from slipstream.core.verify.draws import fits_device


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"temperature": 0.8}, True),
        ({"top_k": 5, "top_p": 0.5}, True),  # greedy: nothing is truncated
        ({"temperature": 0.8, "top_k": 5}, False),
        ({"temperature": 0.8, "top_p": 0.9}, False),
        ({"temperature": 0.8, "min_p": 0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": 0.1}, False),
        ({"logit_bias": ((1, 1.0),)}, False),
    ],
)
def test_only_laws_of_logits_and_temperature_fit(changes, fits):
    assert fits_device(Session("s", 1, 1, SamplingParams(**changes))) is fits


@pytest.mark.parametrize(
    "verification", [mode for mode in Verification if mode is not Verification.EXACT]
)
def test_only_exact_verification_fits(verification):
    assert not fits_device(Session("s", 1, 1, verification=verification))

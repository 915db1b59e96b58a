"""Real processes on which libraries and native code may use the instructions of an older processor.
Without native code everything is torch's, as on a machine without a compiler.

This file is the program of such a process as well: python test_other_cpus.py prints the tokens of
requests alone and plain, and together and drafted, as one JSON object.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from slipstream.client import (
    AsyncClient,
    Mode,
    SamplingParams,
    Shape,
    SpeculationOptions,
    StopPolicy,
)
from support.commands import IMPORT_PATH, ran

pytestmark = pytest.mark.real

PATHS = os.pathsep.join([str(Path(__file__).parents[2]), IMPORT_PATH])
NATIVE_AVX2 = {"SLIPSTREAM_NATIVE": "avx2"}
NO_NATIVE = {"SLIPSTREAM_NATIVE": "off", "ATEN_CPU_CAPABILITY": "default"}
NO_NATIVE |= {"ONEDNN_MAX_CPU_ISA": "AVX2"}
PROMPT = "Explain in three sentences why the sky is blue."
DEMO = ("generate", "--target", "smollm2-135m", "--max-new-tokens", "16", "--compare", PROMPT)
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=3)
LONG = "The river carried the boats past mills and orchards down to the harbour. " * 12
REQUESTS = [
    ("Count from one to thirty.", GREEDY, Shape.CHAIN),
    ("Write a short poem about rain.", SAMPLED, Shape.CAPE),
    (f"Summarise this text. {LONG}", GREEDY, Shape.DYNAMIC),
    ("Why is the sky blue?", SAMPLED, Shape.CHAIN),
    (f"Translate the first sentence into French. {LONG}", GREEDY, Shape.CAPE),
    ("Name the days of the week.", SAMPLED, Shape.DYNAMIC),
]
"""Prompts within one block of keys and beyond, each drafted in another way."""


def run(mask, *arguments):
    """What a Python process under the mask writes, as JSON."""
    fixed = {"PYTHONPATH": PATHS, "GOMP_SPINCOUNT": "3000"}
    done = ran(sys.executable, *arguments, env={**os.environ, **fixed, **mask}, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.usefixtures("real_model")
def test_drafted_requests_at_once_have_the_tokens_they_have_alone():
    answer = run(NATIVE_AVX2, __file__)
    assert answer["together"] == answer["alone"]
    assert min(answer["num_drafted"]) > 0 < sum(answer["num_accepted"])


@pytest.mark.usefixtures("real_model")
def test_without_native_code_torch_decodes_plainly_unless_speculation_is_asked_for():
    plain, forced = (
        run(NO_NATIVE, "-m", "slipstream.cli.main", *DEMO, "--json", *flags)
        for flags in ((), ("--speculation", "forced"))
    )
    assert plain["stats"]["num_draft_tokens"] == 0
    assert plain["token_ids"] == plain["compare"]["plain_token_ids"]
    assert forced["stats"]["num_accepted_draft_tokens"] > 0


async def answers():
    """Results of the requests one after the other, and all at once with forced drafts."""

    def ask(prompt, sampling, **options):
        how = SpeculationOptions(**options)
        return client.generate(prompt, max_tokens=16, sampling=sampling, speculation=how)

    forced = {"mode": Mode.FORCED, "stop": StopPolicy.FIXED}
    forced |= {"max_draft_tokens": 4, "max_nodes": 12}
    async with AsyncClient.embedded("smollm2-135m", "glide") as client:
        alone = [await ask(prompt, sampling, mode=Mode.OFF) for prompt, sampling, _ in REQUESTS]
        drafted = (ask(prompt, sampling, shape=by, **forced) for prompt, sampling, by in REQUESTS)
        return alone, await asyncio.gather(*drafted)


def main():
    alone, together = asyncio.run(answers())
    stats = [at.stats.speculation for at in together]
    found = {
        "alone": [at.token_ids for at in alone],
        "together": [at.token_ids for at in together],
        "num_drafted": [at.num_draft_tokens for at in stats],
        "num_accepted": [at.num_accepted_draft_tokens for at in stats],
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

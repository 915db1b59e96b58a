"""Real processes on which libraries and native code may use the instructions of an older processor.
Without native code everything is torch's, as on a machine without a compiler."""

import json
import os
import sys
from pathlib import Path

import pytest

from support.commands import IMPORT_PATH, ran

pytestmark = pytest.mark.real

TESTS = Path(__file__).resolve().parent.parent.parent
NATIVE_AVX2 = {"SLIPSTREAM_NATIVE": "avx2"}
TORCH = {"SLIPSTREAM_NATIVE": "off"}
LEAST = {**TORCH, "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2"}
PROMPT = "Explain in three sentences why the sky is blue."
DEMO = ("generate", "--target", "smollm2-135m", "--max-new-tokens", "32", "--compare", PROMPT)
FORCED = ("--speculation", "forced")
SAMPLED = ("--temperature", "0.8", "--seed", "7")


def run(mask, *arguments):
    """What a Python process under the mask writes, as JSON."""
    fixed = {"PYTHONPATH": IMPORT_PATH, "GOMP_SPINCOUNT": "3000"}
    done = ran(sys.executable, *arguments, env={**os.environ, **fixed, **mask}, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("flags", [(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.usefixtures("real_model")
def test_the_demo_has_the_tokens_of_plain_decoding(flags):
    answer = run(NATIVE_AVX2, "-m", "slipstream.cli.main", *DEMO, "--json", *FORCED, *flags)
    assert answer["compare"]["identity"] == "identical"
    assert answer["token_ids"] == answer["compare"]["plain_token_ids"]
    assert answer["stats"]["num_accepted_draft_tokens"] > 0


@pytest.mark.usefixtures("real_model")
def test_drafted_requests_at_once_have_the_tokens_they_have_alone():
    answer = run(NATIVE_AVX2, str(TESTS / "other_cpu.py"))
    assert answer["together"] == answer["alone"]
    assert min(answer["num_drafted"]) > 0


@pytest.mark.parametrize("mask", [TORCH, LEAST], ids=["torch", "least"])
@pytest.mark.usefixtures("real_model")
def test_without_native_code_torch_decodes_plainly_unless_speculation_is_asked_for(mask):
    plain, forced = (
        run(mask, "-m", "slipstream.cli.main", *DEMO, "--json", *flags) for flags in ((), FORCED)
    )
    assert plain["stats"]["num_draft_tokens"] == 0
    assert plain["token_ids"] == plain["compare"]["plain_token_ids"]
    assert forced["stats"]["num_accepted_draft_tokens"] > 0

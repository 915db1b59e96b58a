"""Real processes on which libraries and native code may use the instructions of an older processor.
Without native code everything is torch's, as on a machine without a compiler. What a mask can't
show is a processor that rounds in another way; what it can show is every other kernel, and every
operator that is not there."""

import json
import os
import sys
from pathlib import Path

import pytest

from support.commands import IMPORT_PATH, ran

pytestmark = pytest.mark.real

TESTS = Path(__file__).resolve().parent.parent.parent
TORCH = {"SLIPSTREAM_NATIVE": "off"}
AVX2 = {
    **TORCH,
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
NATIVE_AVX2 = {**AVX2, "SLIPSTREAM_NATIVE": "avx2"}
NO_TILES = {**TORCH, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
# With tiles, torch's attention asks for AVX-512 whatever its own mask says.
NO_VECTORS = {**TORCH, "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2"}
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


@pytest.mark.parametrize(
    ("mask", "flags"),
    [(AVX2, ()), (AVX2, SAMPLED), (NO_VECTORS, ())],
    ids=["avx2-greedy", "avx2-sampled", "default-greedy"],
)
@pytest.mark.usefixtures("real_model")
def test_the_demo_has_the_tokens_of_plain_decoding(mask, flags):
    answer = run(mask, "-m", "slipstream.cli.main", *DEMO, "--json", *FORCED, *flags)
    assert answer["compare"]["identity"] == "identical"
    assert answer["token_ids"] == answer["compare"]["plain_token_ids"]
    assert answer["stats"]["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize(
    ("mask", "dtype"),
    [(AVX2, "auto"), (NATIVE_AVX2, "auto"), (NO_TILES, "bfloat16")],
    ids=["avx2", "native-avx2", "no-tiles"],
)
@pytest.mark.usefixtures("real_model")
def test_drafted_requests_at_once_have_the_tokens_they_have_alone(mask, dtype):
    answer = run(mask, str(TESTS / "other_cpu.py"), dtype)
    assert answer["together"] == answer["alone"]
    assert min(answer["num_drafted"]) > 0

"""Laws of a start without torch: with native targets and drafts nothing imports it."""

from pathlib import Path

import pytest

from slipstream.models.native import library
from support.commands import ran_python
from support.models.tiny_checkpoint import save_checkpoint, save_draft

ROOT = Path(__file__).resolve().parents[2]
GENERATE = """
import sys
from slipstream.client import Client, SamplingParams, SpeculationOptions, Mode

ALWAYS = SpeculationOptions(mode=Mode.FORCED)
with Client.embedded(sys.argv[1], sys.argv[2]) as client:
    for sampling in (
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.1),
    ):
        result = client.generate([5, 80, 6], max_tokens=12, sampling=sampling, speculation=ALWAYS)
        assert result.token_ids and result.stats.speculation.num_draft_tokens
    client.generate([5, 80, 6], max_tokens=4, logprobs=2)
sys.stdout.write(" ".join(sorted({"torch", "transformers"} & set(sys.modules))))
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    target = save_checkpoint(folder / "target")
    return str(target), str(save_draft(target, folder / "draft"))


def imported(program, pair, cache):
    """Run a program in a process of its own; what it says that it imported."""
    done = ran_python("-c", program, *pair, SLIPSTREAM_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
def test_after_its_first_start_a_native_pair_generates_without_torch(pair, tmp_path):
    first, again = (imported(GENERATE, pair, tmp_path) for _ in range(2))
    assert first == "torch transformers", "the forward is compared with transformers' once"
    assert again == ""


def test_services_are_imported_without_torch(pair, tmp_path):
    program = """
import sys
import slipstream_draft.__main__, slipstream_router.__main__, slipstream_target.__main__
sys.stdout.write(" ".join(sorted({"torch", "transformers"} & set(sys.modules))))
"""
    assert imported(program, pair, tmp_path) == ""

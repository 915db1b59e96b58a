"""Real processes on which libraries and native code may use the instructions of an older processor.
Without native code everything is torch's, as on a machine without a compiler."""

import json

import pytest

from support.commands import ran_python
from support.models.bench_files import save_prompts

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("real_model")]
NO_NATIVE = {"SLIPSTREAM_NATIVE": "off", "ATEN_CPU_CAPABILITY": "default"}
NO_NATIVE |= {"ONEDNN_MAX_CPU_ISA": "AVX2"}
PROMPT = "Explain in three sentences why the sky is blue."
DEMO = ("generate", "--target", "smollm2-135m", "--max-new-tokens", "16", "--json", PROMPT)
LONG = "The river carried the boats past mills and orchards down to the harbour. " * 12
PROMPTS = ["Write a short poem about rain.", f"Summarise this text. {LONG}", PROMPT]
"""Within one block of keys and beyond."""
LOAD = ("bench", "serve", "--target", "smollm2-135m", "--concurrency", "3", "--repeats", "1")
METHODS = ("plain", "glide", "glide+cape", "glide+dynamic")


def run(*arguments, **mask):
    """What a command writes under the mask."""
    done = ran_python("-m", "slipstream.cli.main", *arguments, GOMP_SPINCOUNT="3000", **mask)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_drafted_requests_at_once_have_the_tokens_they_have_alone(tmp_path):
    prompts = save_prompts(tmp_path, *((at, "a", [text]) for at, text in enumerate(PROMPTS)))
    flags = [*prompts, "--max-new-tokens", "8", "--temperature", "0.8"]
    flags += ["--methods", ",".join(METHODS), "--json", str(out := tmp_path / "out.json")]
    run(*LOAD, *flags, SLIPSTREAM_NATIVE="avx2")
    (level,) = json.loads(out.read_text())["serve"]["levels"]
    assert tuple(level["engines"]) == METHODS
    for name, of in level["engines"].items():
        assert of["identical"] == of["outputs"] > 0
        assert (of["drafted_tokens"] > 0) is (name != "plain")


def test_without_native_code_torch_decodes_plainly_unless_speculation_is_asked_for():
    plain, forced = (
        json.loads(run(*DEMO, *flags, **NO_NATIVE))
        for flags in (("--compare",), ("--speculation", "forced"))
    )
    assert plain["stats"]["num_draft_tokens"] == 0
    assert plain["token_ids"] == plain["compare"]["plain_token_ids"]
    assert forced["stats"]["num_accepted_draft_tokens"] > 0

"""Laws of an installation without torch and transformers: native targets and drafts run there as
everywhere, and what needs torch says so."""

import os
import sysconfig
from pathlib import Path

import pytest

from slipstream.models.native import library
from slipstream.models.torch.loading import load_target_parts
from support.commands import IMPORT_PATH, ran_python
from support.models import tiny_eagle
from support.models.tiny_checkpoint import save_checkpoint, save_draft

needs_native = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
GENERATE = """
import sys
import slipstream_draft.__main__, slipstream_router.__main__, slipstream_target.__main__
from slipstream.client import Client, SamplingParams, SpeculationOptions, Mode

ALWAYS = SpeculationOptions(mode=Mode.FORCED)
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.1),
)
for draft in sys.argv[2:]:
    with Client.embedded(sys.argv[1], draft, profile=None) as client:
        for own in SAMPLINGS:
            result = client.generate([5, 80, 6], max_tokens=12, sampling=own, speculation=ALWAYS)
            assert result.stats.speculation.num_draft_tokens, draft
            sys.stdout.write(f"{result.token_ids} ")
        client.generate([5, 80, 6], max_tokens=4, logprobs=2)
sys.stdout.write(" ".join(sorted({"torch", "transformers"} & set(sys.modules))))
"""
COMMAND = "import sys; from slipstream.cli.main import run; run(sys.argv[1:])"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    target = save_checkpoint(folder / "target")
    draft = save_draft(target, folder / "draft")
    head = tiny_eagle.save_for(load_target_parts(str(target)).model, folder / "head")
    return [str(target), str(draft), f"eagle3:{head}", f"vanilla:{target}"]


@pytest.fixture(scope="module")
def torchless(tmp_path_factory):
    """A folder with all packages of this environment but those of the extra torch."""
    folder, packages = tmp_path_factory.mktemp("packages"), sysconfig.get_path("purelib")
    for path in Path(packages).iterdir():
        if path.name.partition("-")[0] not in ("accelerate", "torch", "transformers", "triton"):
            (folder / path.name).symlink_to(path)
    return os.pathsep.join([IMPORT_PATH, str(folder)])


def ran_without(torchless, cache, *words, **more):
    return ran_python("-S", *words, PYTHONPATH=torchless, SLIPSTREAM_CACHE=str(cache), **more)


@needs_native
def test_native_pairs_generate_the_same_tokens_where_torch_is_not_installed(
    models, torchless, tmp_path
):
    words = ("-c", GENERATE, *models)
    first, again = (ran_without(torchless, tmp_path / "without", *words) for _ in range(2))
    whole = ran_python(*words, SLIPSTREAM_CACHE=str(tmp_path / "with"))
    assert first.returncode == whole.returncode == 0, first.stderr + whole.stderr
    assert whole.stdout == f"{first.stdout}torch transformers", "it is compared with transformers'"
    assert "is not compared with transformers', which is not installed: pip" in first.stderr
    assert (again.stdout, again.stderr) == (first.stdout, ""), "which is said once"


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (("generate", "--target", "TARGET", "--device", "cuda", "a"), "the device 'cuda' needs"),
        (("generate", "--target", "TARGET", "--dtype", "float16", "a"), "(float16 has no native"),
        (("train", "glide"), "this needs torch"),
        (("bench", "cost", "--shape", "llama-3-8b"), "this needs torch"),
    ],
)
def test_what_needs_torch_says_what_to_install(words, subject, models, torchless, tmp_path):
    words = [models[0] if word == "TARGET" else word for word in words]
    done = ran_without(torchless, tmp_path, "-c", COMMAND, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert subject in done.stderr
    assert done.stderr.endswith("pip install 'slipstream[torch]'\n")

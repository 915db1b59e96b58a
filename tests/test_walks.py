"""The walks of CONTRIBUTING.md name what there is, and all places where a choice has to be."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from slipstream.cli.options import EngineFlags, SamplingFlags
from slipstream.core.policy.options import DRAFTERS
from slipstream.core.policy.profile import NGRAM
from slipstream.core.policy.stop import make_stop
from slipstream.core.types import SamplingParams, StopPolicy
from slipstream.drafting.build import _UNTUNED
from slipstream.options import options_of
from slipstream.rpc.conversion.convert_common import STOP
from slipstream.rpc.v1 import common_pb2
from slipstream_draft.config import DraftConfig
from slipstream_gateway.body import SamplingRequest
from slipstream_router.replicas.fleet import KINDS

ROOT = Path(__file__).parents[1]
PATH = re.compile(r"`((?:docs|protos|services|slipstream|tests)/[\w./]+)`((?:, `\w+`)*)")


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


def defined(path):
    for node in ast.parse(text_of(path)).body:
        match node:
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                yield name
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield name


@pytest.mark.parametrize("title", ["Change a stop rule", "Add a sampling option", "Add a drafter"])
def test_every_file_and_name_of_a_walk_is_there(title):
    walk = text_of("CONTRIBUTING.md").split(f"\n## {title}\n")[1].split("\n## ")[0]
    steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
    assert len(steps) > 8
    assert all(PATH.match(step) for step in steps)
    for path, names in PATH.findall(walk):
        assert (ROOT / path).exists(), path
        if names:
            find = defined if path.endswith(".py") else lambda it: re.findall(r"\w+", text_of(it))
            assert set(re.findall(r"\w+", names)) <= set(find(path)), path


@pytest.mark.parametrize("policy", StopPolicy)
def test_a_stop_policy_is_in_all_places_of_its_walk(policy):
    assert make_stop(policy, cost_ratio=0.1).number in range(4)
    assert STOP.from_pb(STOP.to_pb(policy)) is policy
    assert any(policy in row.stops for row in DRAFTERS.values())
    assert f"<option>{policy}" in text_of("services/gateway/slipstream_gateway/page/index.html")
    assert f"| `{policy}` |" in text_of("docs/concepts/stopping.md")
    assert f"StopPolicy.{policy.name}" in text_of("tests/unit/core/policy/test_stop.py")


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_a_sampling_option_is_in_all_places_of_its_walk(name):
    assert name in common_pb2.SamplingParams.DESCRIPTOR.fields_by_name
    assert name in SamplingRequest.model_fields
    assert name in {option.name for option in options_of(SamplingFlags)}
    assert name in text_of("services/gateway/slipstream_gateway/sdk_options.py")
    tests = ("tests/integration/test_lossless.py", "tests/unit/models/cuda/test_draws.py")
    for path in ("docs/http.md", *tests):
        assert re.search(f'[`"( ]{name}[`"=]', text_of(path))


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_drafter_is_in_all_places_of_its_walk(kind):
    for place in (EngineFlags, DraftConfig):
        assert kind in next(option.help for option in options_of(place) if option.name == "draft")
    assert kind == NGRAM.kind or (kind in _UNTUNED and kind in KINDS)
    assert f'"{kind}"' in text_of("tests/integration/test_lossless.py")
    assert re.search(f"`{kind}[`:]", text_of("docs/sdk.md"))

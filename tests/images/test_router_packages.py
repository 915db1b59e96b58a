"""images/router.txt: all that routers and the HTTP front import, and nothing for models."""

from importlib.metadata import packages_distributions

import pytest
from packaging.utils import canonicalize_name

from support.commands import ROOT, ran_python
from support.deployment import lock_files

LEFT_OUT = {"huggingface-hub"}
HEAVY = {"torch", "transformers", "accelerate", "gguf", "numpy"}
SERVE = """
import importlib, pkgutil, sys
from importlib.abc import MetaPathFinder

class Refusal(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in REFUSED:
            raise ModuleNotFoundError(f"{name} is not in images/router.txt", name=name)

REFUSED = {*sys.argv[1:]}
sys.meta_path.insert(0, Refusal())
import opentelemetry.exporter.otlp.proto.grpc.metric_exporter
import opentelemetry.exporter.otlp.proto.grpc.trace_exporter
import opentelemetry.exporter.otlp.proto.http.metric_exporter
import opentelemetry.exporter.otlp.proto.http.trace_exporter
import opentelemetry.exporter.prometheus
SERVICES = ("slipstream_gateway", "slipstream_router")
for part in ("slipstream.state", "slipstream.telemetry", "slipstream.text", *SERVICES):
    home = importlib.import_module(part)
    for module in pkgutil.walk_packages(home.__path__, f"{home.__name__}."):
        importlib.import_module(module.name)
print(sorted({"torch", "numpy"} & {*sys.modules}))
"""


@pytest.fixture(scope="module")
def listed():
    lines = (ROOT / "images" / "router.txt").read_text().splitlines()
    return [canonicalize_name(line) for line in lines if line and not line.startswith("#")]


def test_packages_ask_for_nothing_that_is_not_on_the_list_but_for_what_it_says(listed):
    assert len(set(listed)) == len(listed)
    missing = {name: lock_files.needed(name) - {*listed} for name in listed}
    assert {name: lack for name, lack in missing.items() if lack} == {"tokenizers": LEFT_OUT}
    assert not HEAVY & {*listed}


def test_all_that_a_router_can_come_to_import_is_on_the_list(listed):
    allowed = {"slipstream", *listed}
    owners = packages_distributions().items()
    refused = [name for name, of in owners if not allowed & {*map(canonicalize_name, of)}]
    assert {*refused} >= HEAVY
    done = ran_python("-c", SERVE, *refused)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr

"""The chart as it renders: value files of helm/slipstream/ci through both versions of Helm.
What was rendered once is kept; tests must not change it. Pods are found wherever they hide."""

import base64
import json
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm_tool import HELMS, Helm, missing
from slipstream.config import SECTIONS
from slipstream_draft.config import DraftConfig
from slipstream_gateway.config import HttpConfig
from slipstream_router.config import RouterConfig
from slipstream_target.config import TargetConfig
from support.commands import ran

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "helm/slipstream"
CASES = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
NEWEST_HELM = HELMS[-1]
RELEASE, NAMESPACE = "demo", "serving"
COMPONENT = "app.kubernetes.io/component"
MODEL = "slipstream/model"
ROLES = ("router", "draft", "target")
CONFIGS: dict[str, Any] = {
    "router": RouterConfig,
    "draft": DraftConfig,
    "target": TargetConfig,
    "http": HttpConfig,
}
SERVICES = tuple(CONFIGS)
LIMIT_S = 240  # many at once on a small machine


class UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML in which a key may stand once, as in Kubernetes' own strict reading."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Json:
        keys = [key.value for key, _ in node.value]
        if len(set(keys)) != len(keys):
            raise yaml.YAMLError(f"a key stands twice among {keys}")
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that something rendered will start."""

    owner: str
    role: str
    labels: Mapping[str, str]
    spec: Json
    template: Json

    @property
    def containers(self) -> list[Json]:
        """All of them, those that run before the others first."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def model(self) -> str | None:
        """The model as labels name it; None of a pod of all of them."""
        return self.labels.get(MODEL)

    @property
    def ports(self) -> dict[str, int]:
        named = (port for at in self.containers for port in at.get("ports", ()))
        return {port["name"]: port["containerPort"] for port in named}

    @property
    def main(self) -> Json:
        found: Json = self.spec["containers"][0]
        return found


def every_helm() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("helm", HELMS, ids=lambda at: f"helm-{at.major}")


def every_case() -> pytest.MarkDecorator:
    """A test with each value file of the chart."""
    return pytest.mark.parametrize("case", CASES)


def run(
    helm: Helm, *arguments: str | Path, values: Json | None = None
) -> subprocess.CompletedProcess[str]:
    """Return Helm's output, with values on standard input; skips the test where it is not there.
    Values are named by their paths: `{"target.gpu.count": 1}`."""
    if why := missing(helm):
        pytest.skip(why)
    more = [] if values is None else ["--values", "-"]
    given = json.dumps(nested(values or {}))
    return ran(helm.path, *arguments, *more, cwd=ROOT, input=given, timeout=LIMIT_S)


def nested(values: Json) -> Json:
    """Values that are named by their paths, one within the other."""
    whole: Json = {}
    for path, value in values.items():
        *outer, name = path.split(".")
        at = whole
        for part in outer:
            at = at.setdefault(part, {})
        at[name] = value
    return whole


def template(helm: Helm, *flags: str | Path, **more: Any) -> Any:
    release = more.pop("release", RELEASE)
    return run(helm, "template", release, CHART, "--namespace", NAMESPACE, *flags, **more)


def case_file(case: str) -> Path:
    return CHART / f"ci/{case}.yaml"


@cache
def rendered(case: str, helm: Helm = HELMS[-1], *flags: str) -> tuple[Json, ...]:
    done = template(helm, "--values", case_file(case), *flags)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def parsed(text: str) -> tuple[Json, ...]:
    """Documents of YAML, empty ones left out."""
    return tuple(at for at in yaml.load_all(text, UniqueKeys) if at)


def with_values(
    values: Json | None = None, case: str | None = None, *, release: str = RELEASE
) -> tuple[Json, ...]:
    """Return the objects of values, named by their paths, beside a value file if one is named."""
    files = ["--values", case_file(case)] if case else []
    done = template(NEWEST_HELM, *files, values=values, release=release)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def of_kind(documents: Sequence[Json], *kinds: str) -> list[Json]:
    return [at for at in documents if at["kind"] in kinds]


def named(documents: Sequence[Json], kind: str, name: str) -> Json:
    """The one document of a kind that has a name."""
    (found,) = (at for at in of_kind(documents, kind) if at["metadata"]["name"] == name)
    return found


def title(document: Json) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def pods(documents: Sequence[Json]) -> list[Pod]:
    return [pod for document in documents for pod in _pods(document)]


def service_pods(documents: Sequence[Json]) -> list[Pod]:
    """Return the pods of services that run as Kubernetes' own workloads."""
    found = of_kind(documents, "Deployment", "StatefulSet")
    return [pod for pod in pods(found) if pod.role in SERVICES]


def resident_draft(documents: Sequence[Json]) -> Pod | None:
    """Return the draft in its target's container as a pod of its own: its arguments and ports."""
    by_role = {pod.role: pod for pod in service_pods(documents)}
    target = by_role.get("target")
    if "draft" in by_role or target is None or "draft" not in settings(documents):
        return None
    main = deepcopy(target.main)
    line = shlex.split(next(at for at in main["command"][2].splitlines() if "_draft" in at))
    main["args"] = line[line.index("slipstream_draft") + 1 : line.index("&")]
    inner = [{**at, "name": at["name"].removeprefix("draft-")} for at in main["ports"]]
    main["ports"] = [at for at, own in zip(inner, main["ports"], strict=True) if at != own]
    spec = {**target.spec, "containers": [main]}
    return Pod(target.owner, "draft", target.labels, spec, target.template)


def _pods(document: Json) -> Iterator[Pod]:
    spec = document.get("spec", {})
    if document["kind"] == "Pod":
        yield _pod(document, document)
    elif document["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        for group in (cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", ())):
            yield _pod(document, group["template"])
    elif "template" in spec:
        yield _pod(document, spec["template"])


def _pod(document: Json, template: Json) -> Pod:
    labels = template.get("metadata", {}).get("labels", {})
    return Pod(title(document), labels.get(COMPONENT, ""), labels, template["spec"], template)


def secret_texts(secret: Json) -> dict[str, str]:
    data = {name: base64.b64decode(at).decode() for name, at in secret.get("data", {}).items()}
    return {**data, **secret.get("stringData", {})}


def models_of(documents: Sequence[Json]) -> dict[str, dict[str, Json]]:
    """Return the options of services by role, for each model as labels name it."""
    maps = (document.get("data", {}) for document in of_kind(documents, "ConfigMap"))
    (files,) = (data for data in maps if "slipstream.toml" in data)
    found = {name: tomllib.loads(text) for name, text in files.items()}
    shared = found.pop("slipstream.toml")
    assert all({*shared, *own} <= set(SECTIONS) for own in found.values())
    return {name[len("model-") : -len(".toml")]: shared | own for name, own in found.items()}


def settings(documents: Sequence[Json], model: str | None = None) -> dict[str, Json]:
    """Return the options of services by role, for the only model, or a named one."""
    found = models_of(documents)
    return found[model or min(found)]

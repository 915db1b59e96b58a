"""Upgrades keep what only the cluster has: a drawn password, and the replicas of an autoscaler."""

import base64
import json
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from helm_tool import HELMS
from support.deployment.charts import named, parsed, secret_texts, template

PASSWORD = "drawn at the first installation"
SECRET = "demo-slipstream-redis"
WHERE = f"/api/v1/namespaces/serving/secrets/{SECRET}"
TARGET = "demo-slipstream-target"
SCALED = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": TARGET, "namespace": "serving"},
    "spec": {"replicas": 3},
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
        f"/apis/apps/v1/namespaces/serving/deployments/{TARGET}": SCALED,
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


def online(cluster: str) -> tuple[str, ...]:
    """Flags of an upgrade that reads the cluster."""
    own = ("--disable-openapi-validation", "--kube-apiserver", cluster)
    return ("--is-upgrade", "--dry-run=server", *own)


def password(*flags: str, helm) -> str:
    done = template(helm, *flags)
    assert done.returncode == 0, done.stderr
    return secret_texts(named(parsed(done.stdout), "Secret", SECRET))["password"]


@pytest.mark.parametrize("helm", HELMS, ids=lambda at: f"helm-{at.major}")
def test_the_password_of_redis_stays_in_an_upgrade(cluster, helm):
    assert password(*online(cluster), helm=helm) == PASSWORD


def test_the_password_of_redis_is_drawn_where_there_is_none():
    drawn = {password(helm=HELMS[-1]) for _ in range(2)}
    assert len(drawn) == 2 and all(len(text) >= 16 for text in drawn)


def replicas(*flags: str, helm=HELMS[-1], least: int = 1, own: int = 1, scaled: bool = True) -> int:
    autoscaling = {"minReplicas": least, "maxReplicas": 8, "hpa": {"enabled": scaled}}
    values = {"target.autoscaling": autoscaling, "target.replicas": own}
    done = template(helm, *flags, values=values)
    assert done.returncode == 0, done.stderr
    return named(parsed(done.stdout), "Deployment", TARGET)["spec"]["replicas"]


@pytest.mark.parametrize("helm", HELMS, ids=lambda at: f"helm-{at.major}")
def test_an_upgrade_keeps_the_replicas_that_an_autoscaler_has_chosen(cluster, helm):
    assert replicas(*online(cluster), helm=helm) == 3
    assert replicas(*online(cluster), helm=helm, own=6) == 3
    assert replicas(*online(cluster), helm=helm, least=4) == 4
    assert replicas(*online(cluster), helm=helm, own=6, scaled=False) == 6


@pytest.mark.parametrize(("least", "own"), [(4, 1), (1, 4), (4, 4)])
def test_without_a_cluster_a_scaled_role_starts_with_its_own_number_or_the_fewest(least, own):
    assert replicas(least=least, own=own) == 4

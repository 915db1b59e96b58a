"""What was drawn at the first installation is kept in upgrades, by asking the cluster for it."""

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
KEPT = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": SECRET, "namespace": "serving"},
    "data": {"password": base64.b64encode(PASSWORD.encode()).decode()},
}


def kinds() -> set[tuple[str, str]]:
    """Versions and kinds of what the chart renders: the cluster must know of them."""
    done = template(HELMS[-1])
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
        **lists,
    }


class Cluster(BaseHTTPRequestHandler):
    """A Kubernetes that has one secret."""

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


def password(*flags: str, helm) -> str:
    done = template(helm, *flags)
    assert done.returncode == 0, done.stderr
    return secret_texts(named(parsed(done.stdout), "Secret", SECRET))["password"]


@pytest.mark.parametrize("helm", HELMS, ids=lambda at: f"helm-{at.major}")
def test_the_password_of_redis_stays_in_an_upgrade(cluster, helm):
    online = ("--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", cluster)
    assert password("--is-upgrade", *online, helm=helm) == PASSWORD


def test_the_password_of_redis_is_drawn_where_there_is_none():
    drawn = {password(helm=HELMS[-1]) for _ in range(2)}
    assert len(drawn) == 2 and all(len(text) >= 16 for text in drawn)

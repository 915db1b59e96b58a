"""The bundled Redis: a real server by the chart's own start script, whose users may do little."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from slipstream.state.options import StoreOptions
from support.commands import ROOT, ran
from support.deployment.charts import NAMESPACE, RELEASE, named, rendered, settings, with_values
from support.deployment.kube_schemas import NEWEST, faults
from support.state.redis_server import RedisServer, redis_server
from support.state.session_stores import keeps_a_session, store_of

PASSWORD = "a \"password\" with 'quotes', \\ and $HOME"
RAY = {"ray.enabled": True, "ray.faultTolerance.enabled": True}


@dataclass(frozen=True)
class Pod:
    """The files of the pod of Redis, in a folder."""

    folder: Path

    def start(self) -> subprocess.CompletedProcess[str]:
        """Run the start script up to the server, which is a command that does nothing."""
        tools = self.folder / "tools"
        tools.mkdir(exist_ok=True)
        (tools / "redis-server").write_text("#!/bin/sh\n")
        (tools / "redis-server").chmod(0o755)
        return self.run("start.sh", PATH=f"{tools}:{os.environ['PATH']}")

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        script = self.folder / "etc/redis/config" / script
        return ran("sh", script, env={**os.environ, **variables})

    @property
    def file(self) -> Path:
        """What the server reads."""
        return self.folder / "run/redis/redis.conf"


def pod_in(folder, documents, password=PASSWORD):
    """The pod of what was rendered, its directories in a folder."""
    data = named(documents, "ConfigMap", f"{RELEASE}-slipstream-redis")["data"]
    for name in ("etc/redis/config", "etc/redis/auth", "run/redis", "data"):
        (folder / name).mkdir(parents=True)
    for name, text in data.items():
        moved = re.sub(r"/(etc/redis|run/redis|data)\b", rf"{folder}/\1", text)
        (folder / "etc/redis/config" / name).write_text(moved)
    (folder / "etc/redis/auth/password").write_text(password)
    return Pod(folder)


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    made = pod_in(tmp_path_factory.mktemp("pod"), with_values(RAY))
    done = made.start()
    assert (done.returncode, done.stderr) == (0, "")
    return made


@pytest.fixture(scope="module")
def server(pod):
    with redis_server(str(pod.file)) as running:
        yield running


@pytest.fixture
def options(server: RedisServer) -> StoreOptions:
    return StoreOptions(server.url, user="slipstream", password=PASSWORD, timeout_s=10.0)


def operator(pod):
    return {"user": "operator", "password": (pod.folder / "run/redis/operator").read_text().strip()}


async def test_the_services_user_keeps_sessions(options):
    async with store_of(options) as store:
        await keeps_a_session(store)


def test_the_documented_user_is_the_one_of_the_chart(pod):
    (line,) = re.findall(
        r"^user slipstream .*$", (ROOT / "docs/sessions.md").read_text(), re.MULTILINE
    )
    (own,) = re.findall(r"^user slipstream .*$", pod.file.read_text(), re.MULTILINE)
    assert re.sub("#[0-9a-f]{64}", "#PASSWORD", own) == line


@pytest.mark.parametrize("user", [None, "default", "slipstream", "operator", "ray"])
@pytest.mark.parametrize("password", ["", "guessed"])
def test_no_client_connects_without_a_password(user, password, server):
    with pytest.raises(redis.RedisError, match=r"(?i)authenticat|WRONGPASS|password"):
        server.call("PING", user=user, password=password or None)


def test_the_operator_probes_and_reads_no_data(pod, server):
    assert server.call("PING", **operator(pod)) in (True, b"PONG")
    assert server.call("CONFIG", "SET", "tls-cert-file", "", **operator(pod)) in (True, b"OK")
    for words in (("GET", "slipstream:x"), ("CONFIG", "GET", "*"), ("KEYS", "*")):
        with pytest.raises(redis.RedisError, match=r"(?i)permission"):
            server.call(*words, **operator(pod))


def test_rays_user_reaches_rays_state_only(server):
    ray = {"user": "ray", "password": PASSWORD}
    assert server.call("HSET", "RAYdefault@KV", "a", "1", **ray) == 1
    assert server.call("INCRBY", "RAYdefault@JobCounter", 1, **ray) == 1
    assert server.call("DEL", "DUMMY", **ray) == 0
    assert server.call("SCAN", "0", "MATCH", "RAYdefault@*", **ray)
    for words in (("HGETALL", "slipstream:session:{a}"), ("FLUSHALL",), ("CONFIG", "GET", "*")):
        with pytest.raises(redis.RedisError, match=r"(?i)permission"):
            server.call(*words, **ray)


def test_ray_gets_its_user_and_there_is_none_without_it(pod):
    (service,) = [at for at in with_values(RAY) if at["kind"] == "RayService"]
    told_ray = service["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
    assert told_ray["redisUsername"] == {"value": "ray"}
    assert [faults(service, version) for version in NEWEST] == [[] for _ in NEWEST]
    assert "user ray " in pod.file.read_text()
    plain = named(with_values(), "ConfigMap", f"{RELEASE}-slipstream-redis")["data"]
    assert "user ray " not in plain["start.sh"]


def test_no_password_is_in_what_the_server_reads_or_in_an_argument(pod):
    assert PASSWORD not in pod.file.read_text()
    assert operator(pod)["password"] not in pod.file.read_text()
    assert pod.file.stat().st_mode & 0o077 == 0


def test_a_server_without_a_password_does_not_start(tmp_path):
    empty = pod_in(tmp_path / "pod", with_values(), password="")
    assert empty.start().returncode != 0
    assert not empty.file.exists()


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")
def test_the_probe_sees_a_server_that_answers_and_one_that_does_not(tmp_path):
    made = pod_in(tmp_path / "pod", with_values())
    assert made.start().returncode == 0
    cli = made.folder / "tools/redis-cli"
    real = shutil.which("redis-cli")
    with redis_server(str(made.file)) as running:
        cli.write_text(f'#!/bin/sh\nexec {real} -s {running.socket} "$@"\n')
        cli.chmod(0o755)
        path = f"{made.folder / 'tools'}:{os.environ['PATH']}"
        assert made.run("ping.sh", PATH=path).returncode == 0
    assert made.run("ping.sh", PATH=path).returncode != 0


def test_services_get_the_user_and_the_prefix_that_it_may_use():
    for case in ("tls", "ray", "production"):
        tables = settings(rendered(case))
        assert {tables[role]["store_prefix"] for role in ("router", "target")} == {"slipstream"}
        assert {tables[role]["store_user"] for role in ("router", "target")} == {"slipstream"}
    own = named(
        with_values({"redis.prefix": "inference"}), "ConfigMap", f"{RELEASE}-slipstream-redis"
    )
    assert "~inference:* " in own["data"]["start.sh"]
    assert own["metadata"]["namespace"] == NAMESPACE

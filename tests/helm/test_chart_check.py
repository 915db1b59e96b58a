"""The pod of `helm test` and the probes of the chart, tried on services that run."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.models.format.resolve import short_name
from slipstream.models.format.wheel import CATALOG
from support.commands import ran_python
from support.deployment.charts import (
    NAMESPACE,
    Json,
    every_case,
    models_of,
    named,
    of_kind,
    rendered,
    service_pods,
    with_values,
)
from support.network.ports import free_port, free_ports
from support.services import cluster
from support.services.http_front import fronted
from support.services.processes import LIMIT_S, children, kill, save_long_checkpoint
from test_docs_commands import command

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
SERVING = health_pb2.HealthCheckResponse.SERVING


def checking(documents: Sequence[Json]) -> list[Json]:
    """The container of each model's pod."""
    found = []
    for pod in of_kind(documents, "Pod"):
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        assert pod["spec"]["restartPolicy"] == "Never"
        found += pod["spec"]["containers"]
    assert len(found) == len(models_of(documents))
    return found


def words(container: Json) -> list[str]:
    """The command line of a container, which must not depend on the image's entrypoint."""
    assert container["command"][0] == "slipstream"
    return [*container["command"], *container.get("args", ())]


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    """Where a router of real services listens, whose draft is the target itself."""
    model = save_long_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny")
    with cluster.running(model, f"vanilla:{model}") as services:
        yield services.address


@every_case()
def test_the_command_has_the_options_that_it_is_given_and_dials_the_routers_service(case):
    for line in map(words, checking(rendered(case))):
        known, _ = command(line[1:])
        assert {word for word in line if word.startswith("--")} <= known
        host, _, port = line[line.index("--router") + 1].rpartition(":")
        name, namespace, kind = host.split(".")[:3]
        service = named(rendered(case), "Service", name)
        assert (namespace, kind) == (NAMESPACE, "svc")
        assert int(port) in [at["port"] for at in service["spec"]["ports"]]


def test_models_are_named_as_services_name_them():
    known = {name for at in CATALOG.values() for name in (at.alias, at.hub_id) if name}
    for name in known | {"a/A-1.5B@0123abc", "a/A_b"}:
        (line,) = map(words, checking(with_values({"models": [{"name": name}]})))
        assert line[line.index("--model") + 1] == short_name(name)


def test_the_exact_command_finds_that_drafted_tokens_are_accepted(router):
    (container,) = checking(with_values({"models": [{"name": "/models/tiny"}]}))
    line = words(container)
    line[line.index("--router") + 1] = router
    env = {at["name"]: at["value"] for at in container["env"] if "value" in at}
    done = ran_python("-m", "slipstream.cli.main", *line[1:], **{**env, "HOME": os.environ["HOME"]})
    assert done.returncode == 0, done.stderr
    assert "drafted" in done.stdout and router in done.stdout


def test_probes_ask_what_services_answer(router):
    asked = {
        pod.main[probe]["grpc"].get("service", "")
        for pod in service_pods(rendered("minimal-cpu"))
        for probe in PROBES
    }
    with grpc.insecure_channel(router) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in asked:
            request = health_pb2.HealthCheckRequest(service=service)
            assert health.Check(request, timeout=LIMIT_S).status == SERVING, service


def test_probes_of_the_front_find_it_alive_and_ready_before_a_router_alone(router):
    (pod,) = (at for at in service_pods(rendered("http")) if at.role == "http")
    paths = {probe: pod.main[probe]["httpGet"]["path"] for probe in PROBES}
    for address, status in ((router, 200), (f"127.0.0.1:{free_port()}", 503)):
        with fronted(address) as url:
            answers = {probe: httpx2.get(url + path).status_code for probe, path in paths.items()}
        assert answers == dict.fromkeys(PROBES, 200) | {"readinessProbe": status}


def one_container(folder, ports):
    """Return the command line and the environment of the container that runs a draft and its
    target, by the chart's own script, on this CPU and these ports."""
    model, sized = str(save_long_checkpoint(folder / "tiny")), "config.kv_memory"
    values = {"models": [{"name": model, "draft": f"vanilla:{model}"}], "target.gpu.count": 1}
    values |= {"redis.enabled": False, "metrics.enabled": False, "draft.placement": "target"}
    values |= {f"draft.{sized}": "64MiB", f"target.{sized}": "64MiB", "draft.ports.grpc": ports[0]}
    documents = with_values({**values, "target.ports": {"grpc": ports[1], "health": ports[2]}})
    (main,) = (pod.main for pod in service_pods(documents) if pod.role == "target")
    text = named(documents, "ConfigMap", "demo-slipstream-config")["data"]["model-tiny.toml"]
    (folder / "model-tiny.toml").write_text(text.replace('"cuda"', '"cpu"'))
    given = {at["name"]: at["value"] for at in main["env"] if "ADVERTISED" in at["name"]}
    env = {name: at.replace("$(POD_IP)", "127.0.0.1") for name, at in given.items()}
    line = [at.replace("/etc/slipstream/config", str(folder)) for at in main["command"]]
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return [*line, "--config", str(folder / "model-tiny.toml")], {**os.environ, **env}


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_container_of_both_drains_them_when_it_is_stopped_and_ends_with_either(
    is_stopped, tmp_path
):
    ports = free_ports(3)
    line, env = one_container(tmp_path, ports)
    with subprocess.Popen(line, env=env) as container:
        for port in ports[:2]:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(LIMIT_S)
        if is_stopped:
            container.terminate()
        else:
            kill(next(iter(children(container.pid, "slipstream_draft"))))
        assert (container.wait(LIMIT_S) == 0) is is_stopped
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))

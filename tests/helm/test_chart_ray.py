"""Pools on Ray in the chart: Ray Serve takes what it is told, and nobody else scales them."""

import json

import pytest
import yaml

from slipstream.cluster.plan import plan_from
from support.deployment.charts import named, of_kind, pods, rendered, with_values


def ray_service():
    return named(rendered("ray"), "RayService", "demo-slipstream-ray")["spec"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, of pydantic
def test_serve_takes_its_options_and_so_do_the_pools():
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema(**yaml.safe_load(ray_service()["serveConfigV2"]))
    (application,) = config.applications
    assert application.import_path == "slipstream.cluster.app:build"
    plan = plan_from(application.args)
    assert plan.config == "/etc/slipstream/config/model-smollm2-135m.toml"
    assert {role: pool.port for role, pool in plan.pools().items()} == {
        "target": 50061,
        "draft": 50062,
    }


def test_every_pool_has_workers_of_its_own_with_room_for_one_replica_each():
    spec = ray_service()
    args = yaml.safe_load(spec["serveConfigV2"])["applications"][0]["args"]
    for group in spec["rayClusterConfig"]["workerGroupSpecs"]:
        pool = args[group["groupName"]]
        assert json.loads(json.loads(group["rayStartParams"]["resources"])) == pool["resources"]
        assert (group["minReplicas"], group["maxReplicas"]) == (
            pool["min_replicas"],
            pool["max_replicas"],
        )


def test_pools_on_ray_are_not_deployments_too_but_reached_by_the_same_services():
    documents = rendered("ray")
    names = {at["metadata"]["name"] for at in of_kind(documents, "Deployment")}
    assert names == {"demo-slipstream-router"}
    for role in ("draft", "target"):
        wanted = named(documents, "Service", f"demo-slipstream-{role}")["spec"]["selector"]
        found = [pod for pod in pods(documents) if wanted.items() <= pod.labels.items()]
        assert [pod.owner for pod in found] == ["RayService/demo-slipstream-ray"]


def test_without_drafts_there_is_no_pool_of_them():
    documents = with_values({"draft.enabled": False}, "ray")
    spec = named(documents, "RayService", "demo-slipstream-ray")["spec"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert group["groupName"] == "target"
    args = yaml.safe_load(spec["serveConfigV2"])["applications"][0]["args"]
    assert plan_from(args).draft is None

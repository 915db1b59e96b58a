"""Pools on Ray in the chart: Ray Serve takes what it is told, and nobody else scales them."""

import json

import pytest
import yaml

from slipstream.cluster.plan import plan_from
from support.deployment.charts import COMPONENT, MODEL, named, of_kind, pods, rendered, with_values

MODELS = ("smollm2-135m", "smollm2-360m-instruct")


def ray_service():
    return named(rendered("ray"), "RayService", "demo-slipstream-ray")["spec"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, of pydantic
def test_serve_takes_its_options_and_so_do_the_pools_of_each_model():
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema(**yaml.safe_load(ray_service()["serveConfigV2"]))
    assert {at.import_path for at in config.applications} == {"slipstream.cluster.app:build"}
    for plan, model in zip((plan_from(at.args) for at in config.applications), MODELS, strict=True):
        assert plan.config == f"/etc/slipstream/config/model-{model}.toml"
        ports = {role: pool.port for role, pool in plan.pools().items()}
        assert ports == {"target": 50061, "draft": 50062}


def test_every_pool_has_workers_of_its_own_with_room_for_one_replica_each():
    spec = ray_service()
    groups = {at["groupName"]: at for at in spec["rayClusterConfig"]["workerGroupSpecs"]}
    for application in yaml.safe_load(spec["serveConfigV2"])["applications"]:
        for role in ("target", "draft"):
            group = groups.pop(f"{role}-{application['name']}")
            pool, labels = application["args"][role], group["template"]["metadata"]["labels"]
            assert json.loads(json.loads(group["rayStartParams"]["resources"])) == pool["resources"]
            assert group["minReplicas"] == group["replicas"] == pool["min_replicas"]
            assert group["maxReplicas"] == pool["max_replicas"]
            assert (labels[COMPONENT], labels[MODEL]) == (role, application["name"])
    assert not groups


def test_pools_on_ray_are_not_deployments_too_but_reached_by_the_same_services():
    documents = rendered("ray")
    names = {at["metadata"]["name"] for at in of_kind(documents, "Deployment")}
    assert names == {"demo-slipstream-router"}
    for role in ("draft", "target"):
        wanted = named(documents, "Service", f"demo-slipstream-{role}")["spec"]["selector"]
        found = [pod for pod in pods(documents) if wanted.items() <= pod.labels.items()]
        assert [pod.owner for pod in found] == ["RayService/demo-slipstream-ray"] * len(MODELS)


def test_without_drafts_there_is_no_pool_of_them():
    documents = with_values({"draft.enabled": False}, "ray")
    spec = named(documents, "RayService", "demo-slipstream-ray")["spec"]
    groups = [at["groupName"] for at in spec["rayClusterConfig"]["workerGroupSpecs"]]
    assert groups == [f"target-{model}" for model in MODELS]
    args = yaml.safe_load(spec["serveConfigV2"])["applications"][0]["args"]
    assert plan_from(args).draft is None

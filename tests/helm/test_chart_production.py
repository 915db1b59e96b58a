"""The values for production: encrypted, authenticated, bounded, several pods of each role."""

import re
import shlex
from functools import cache

import pytest

from support.deployment.charts import (
    CHART,
    COMPONENT,
    NEWEST_HELM,
    ROLES,
    case_file,
    of_kind,
    pods,
    rendered,
    run,
    service_pods,
    title,
)


@pytest.fixture(scope="module")
def documents():
    return rendered("production")


def test_every_service_asks_for_processors_and_has_a_limit_of_them(documents):
    for pod in service_pods(documents):
        resources = pod.main["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"]) & set(resources["limits"])


def test_every_role_has_several_pods_and_a_budget_of_evictions(documents):
    for workload in of_kind(documents, "Deployment"):
        assert workload["spec"]["replicas"] >= 2, title(workload)
    budgets = of_kind(documents, "PodDisruptionBudget")
    assert {at["metadata"]["labels"][COMPONENT] for at in budgets} == set(ROLES)
    policies = of_kind(documents, "NetworkPolicy")
    assert {at["metadata"]["labels"][COMPONENT] for at in policies} == {*ROLES, "redis"}


def test_no_secret_is_made_from_values_and_none_is_in_them(documents):
    assert of_kind(documents, "Secret") == []


def test_the_image_that_is_not_ours_is_named_by_its_digest(documents):
    (redis,) = (pod for pod in pods(documents) if pod.role == "redis")
    assert "@sha256:" in redis.main["image"]


@cache
def notes(*flags):
    """The end of what an installation prints; Helm 3 needs a cluster for that."""
    done = run(NEWEST_HELM, "install", "demo", CHART, "--dry-run=client", *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


COMMAND = re.compile(r"^    (helm upgrade .*)$", re.MULTILINE)


def test_the_notes_find_open_settings_each_with_a_command_that_closes_it():
    assert "Open security settings" not in notes("--values", case_file("production"))
    assert "Open security settings" in notes()
    commands = COMMAND.findall(notes())
    assert len(commands) == 3
    flags: list[str] = []
    for line in commands:
        words = shlex.split(line)
        assert words[:4] == ["helm", "upgrade", "demo", "helm/slipstream"]
        flags += words[words.index("--set") :]
    assert "Open security settings" not in notes(*flags)


def test_the_notes_hint_that_limits_are_for_the_default_model():
    hint = "are those of smollm2-135m"
    assert f"own/model {hint}" in notes("--set", "models[0].name=own/model")
    assert hint not in notes()

"""Values that are wrong are refused, by the schema with their path, or with a sentence."""

import json
import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from jsonschema.validators import validator_for

from reference.values_page import TWINS, values
from reference.values_page import VALUES as FILE
from slipstream.options import options_of
from slipstream.telemetry.config import TelemetryConfig
from support.deployment.charts import (
    CASES,
    CHART,
    CONFIGS,
    NEWEST_HELM,
    every_helm,
    rendered,
    settings,
    template,
    with_values,
)

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
GIVEN = yaml.safe_load(Path(__file__).with_name("values_cases.yaml").read_text())
EVIL = "x\"'\n---\nkind: Pod\nevil: 1\n# {{ . }} $(touch x) `id`; \\"
VALID = validator_for(SCHEMA)(SCHEMA)


def leaves(value, path=""):
    """Yield each value that has none within it, with its path."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from leaves(inner, f"{path}.{name}".lstrip("."))


LEAVES = dict(leaves(VALUES))


def is_valid(path, value):
    """Whether the schema takes a value beside those of the chart."""
    *outer, name = path.split(".")
    inner = given = deepcopy(VALUES)
    for part in outer:
        inner = inner[part]
    inner[name] = value
    return VALID.is_valid(given)


@every_helm()
def test_wrong_values_are_refused_with_their_paths(helm):
    done = template(helm, values=GIVEN["wrong"])
    assert done.returncode != 0
    lines = done.stderr.replace("/", ".").splitlines()
    for path in GIVEN["wrong"]:
        outer, _, name = path.rpartition(".")
        assert any(outer in line and name in line for line in lines), f"{path}: {done.stderr}"
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("what", GIVEN["contradictory"])
def test_values_that_can_not_work_together_are_refused_with_a_sentence(what):
    values = GIVEN["contradictory"][what]
    done = template(NEWEST_HELM, values=values)
    assert done.returncode != 0
    (said,) = re.findall(r"^Error: execution error at \(.*?\): (.*)$", done.stderr, re.MULTILINE)
    roots = [path.partition(".")[0] for path in values]
    assert any(root in said for root in roots), said
    assert "error calling" not in said and "nil pointer" not in said, said


@pytest.mark.parametrize("values", GIVEN["roomy"])
def test_memory_and_storage_with_room_are_taken_in_any_unit(values):
    assert with_values(values)


def schema_objects(schema, given, path=""):
    """Yield each object of the schema that says what is in it, with its path and its value."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        yield path, schema, given
    inner = given if isinstance(given, dict) else {}
    for name, part in schema.get("properties", {}).items():
        yield from schema_objects(part, inner.get(name), f"{path}.{name}".lstrip("."))


def test_the_schema_has_the_names_of_the_values_and_takes_no_others():
    for path, schema, given in schema_objects(SCHEMA, VALUES):
        assert schema.get("additionalProperties") is False, path
        if isinstance(given, dict) and given and not path.endswith(PARTIAL):
            assert set(schema["properties"]) - {"global"} == set(given), path


PARTIAL = ("ecurityContext", "resources", "requests", "limits", "labels", "capabilities")
"""Kubernetes' own objects: values name a part of what there may be."""


def test_numbers_of_pods_and_ports_are_none_below_zero():
    counts = [path for path in LEAVES if path.endswith(("eplicas", "gpu.count"))]
    assert len(counts) > 7
    assert [path for path in counts if is_valid(path, -1)] == []


def keys(values):
    """Yield every key, and those of files within values, where the text must be a value, too."""
    if isinstance(values, dict):
        yield from values
    if isinstance(values, dict | list):
        for inner in values.values() if isinstance(values, dict) else values:
            yield from keys(inner)
    elif isinstance(values, str) and "evil" in values and values != EVIL:
        yield from (line.partition(":")[0].strip() for line in values.split("\n")[1:-1])


def test_text_of_a_value_adds_no_object_no_field_and_no_line():
    """Values that may be any text, but for those that are lines and objects by their purpose."""
    raw = {"redis.extraConfig", "extraObjects"}
    texts = {path for path, value in LEAVES.items() if value is None or isinstance(value, str)}
    given = [path for path in texts - raw if is_valid(path, EVIL)]
    assert len(given) > 5
    plain, found = rendered("production"), with_values(dict.fromkeys(given, EVIL), "production")
    kinds = [sorted(f"{it['kind']} {it['apiVersion']}" for it in docs) for docs in (plain, found)]
    assert kinds[0] == kinds[1]
    assert "evil" not in keys(list(found))


@pytest.mark.parametrize("section", [*CONFIGS, "telemetry"])
def test_every_option_is_a_value_or_said_by_the_chart(section):
    known = {each.name for each in options_of(CONFIGS.get(section, TelemetryConfig))}
    options = set(SCHEMA["definitions"][f"{section}Options"]["properties"])
    said = {name for case in CASES for name in settings(rendered(case)).get(section, {})}
    untold = {"metrics"} if section == "telemetry" else {"store_password", "advertised_address"}
    assert options <= known
    assert known - options - said <= untold


def test_every_value_says_what_it_is_in_a_sentence():
    found = values(FILE.read_text())
    assert len(found) > 200
    assert [value.path for value in found if not value.text.endswith(".")] == []


def test_the_roles_have_one_shape_but_for_ports_the_key_of_the_front_and_the_place_of_drafts():
    paths = {name: set() for name in TWINS}
    for value in values(FILE.read_text()):
        role, _, path = value.path.partition(".")
        if role in paths and not path.startswith(("ports.", "token.", "placement")):
            paths[role].add(path)
    assert all(paths[name] == paths["router"] for name in TWINS)

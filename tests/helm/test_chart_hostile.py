"""A value of the chart is a value where it arrives: it adds no object, no field and no line."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for

from support.deployment.charts import CHART, NEWEST_HELM, case_file, nested, parsed, template

EVIL = "x\"'\n---\nkind: Pod\nevil: 1\n# {{ . }} $(touch x) `id`; \\"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
RAW = {"redis.extraConfig", "extraObjects"}
"""Values that are lines and objects by their purpose."""


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value that has none within it."""
    if isinstance(values, dict) and values:
        for name, inner in values.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path


def merged(values: Any, more: Any) -> Any:
    """Return values with others over them, as Helm does."""
    if not isinstance(values, dict) or not isinstance(more, dict):
        return more
    return values | {name: merged(values.get(name), at) for name, at in more.items()}


VALID = validator_for(SCHEMA)(SCHEMA)
OPEN = [
    path
    for path in map(".".join, leaves(VALUES))
    if path not in RAW and VALID.is_valid(merged(VALUES, nested({path: EVIL})))
]
"""Values that may be any text, as far as the schema says."""


def test_numbers_of_pods_and_ports_are_none_below_zero():
    counts = [
        path for path in map(".".join, leaves(VALUES)) if path.endswith(("eplicas", "gpu.count"))
    ]
    assert len(counts) > 7
    for path in counts:
        assert not VALID.is_valid(merged(VALUES, nested({path: -1}))), path


def keys(values: Any) -> Iterator[str]:
    if isinstance(values, dict):
        for name, inner in values.items():
            yield name
            yield from keys(inner)
    elif isinstance(values, list):
        for inner in values:
            yield from keys(inner)
    elif isinstance(values, str) and "evil" in values and values != EVIL:
        # A file within a value: the text must be a value there, too.
        yield from (line.partition(":")[0].strip() for line in values.split("\n")[1:-1])


def objects(documents: tuple[Any, ...]) -> list[str]:
    return sorted(f"{at['kind']} {at['apiVersion']}" for at in documents)


@pytest.mark.parametrize("path", OPEN)
def test_text_of_a_value_stays_within_it(path):
    files = ("--values", case_file("production"))
    plain = template(NEWEST_HELM, *files)
    done = template(NEWEST_HELM, *files, values={path: EVIL})
    assert plain.returncode == 0, plain.stderr
    if done.returncode != 0:
        assert "panic" not in done.stderr and "YAML parse error" not in done.stderr, done.stderr
        return
    found = parsed(done.stdout)
    assert objects(found) == objects(parsed(plain.stdout))
    assert "evil" not in keys(list(found))

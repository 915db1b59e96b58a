"""docs/kubernetes.md says what the chart takes: values, commands and names."""

import re
import shlex
from itertools import pairwise

import pytest
import yaml

from support.deployment.charts import CHART, NEWEST_HELM, ROOT, template, title, with_values

PAGE = ROOT / "docs/kubernetes.md"
TEXT = PAGE.read_text()
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
BLOCKS = [yaml.safe_load(at) for at in re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S)]
COMMANDS = [line for line in TEXT.splitlines() if line.startswith(("helm ", "kubectl "))]
PATH = re.compile(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)(?:: [^`]*)?`")
OBJECT = re.compile(r"\b(service|deployment)/(demo[\w-]+)")


@pytest.mark.parametrize("values", BLOCKS, ids="+".join)
def test_values_of_the_page_render(values):
    assert with_values(values)


@pytest.mark.parametrize("line", [at for at in COMMANDS if "helm/slipstream" in at])
def test_a_command_of_helm_is_taken(line):
    words = shlex.split(line)
    flags = []
    for flag, value in pairwise(words):
        if flag in ("--values", "--set") and value != "values.yaml":
            flags += [flag, value]
    assert words[3] == "helm/slipstream"
    done = template(NEWEST_HELM, *flags)
    assert done.returncode == 0, done.stderr


def test_objects_that_commands_name_are_rendered():
    there = set(map(title, with_values({"http.enabled": True})))
    named = {f"{kind.title()}/{name}" for line in COMMANDS for kind, name in OBJECT.findall(line)}
    assert len(named) >= 2
    assert named <= there


def test_values_that_the_page_names_are_there():
    roots = {*VALUES, "ROLE"}
    files = {"tls.crt", "tls.key"}
    found = {at for at in PATH.findall(TEXT) if at.partition(".")[0] in roots} - files
    assert len(found) > 15
    assert [path for path in sorted(found) if not is_value(path)] == []


def is_value(path):
    at = VALUES
    for part in path.replace("ROLE", "router", 1).split("."):
        if not isinstance(at, dict) or part not in at:
            return False
        at = at[part]
    return True


def test_ports_that_the_page_names_are_those_of_the_services():
    ports = {name: VALUES[name]["ports"]["grpc"] for name in ("router", "draft", "target")}
    ports |= {"HTTP front": VALUES["http"]["ports"]["http"]}
    ports |= {"bundled Redis": VALUES["redis"]["port"]}
    for name, port in ports.items():
        assert f"| {name} | {port} |" in TEXT

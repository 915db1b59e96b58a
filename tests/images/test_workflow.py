"""What publishes the images: which, from what, with which rights."""

import pytest
import yaml

from support.deployment.dockerfile import FILE, ROLES, ROOT, parse

WORKFLOW = ROOT / ".github" / "workflows" / "images.yml"


@pytest.fixture(scope="module")
def workflow():
    return yaml.safe_load(WORKFLOW.read_text())


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
    engines = [("cpu", ""), ("cuda", "-cuda"), ("cuda", "-cuda-ray")]
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


def test_only_tags_are_published(workflow, job, build):
    events = workflow[True]  # `on` is a truth in YAML
    assert events["push"] == {"tags": ["v*"]}
    assert set(events) == {"push", "pull_request"}
    assert build["with"]["push"] == "${{ github.event_name == 'push' }}"
    (login,) = [each for each in job["steps"] if "login-action" in each.get("uses", "")]
    assert login["if"] == "github.event_name == 'push'"


def test_the_workflow_may_read_the_code_write_packages_and_sign(workflow, job):
    assert workflow["permissions"] == {}
    assert job["permissions"] == {
        "contents": "read",
        "packages": "write",
        "id-token": "write",
        "attestations": "write",
    }
    checkout = job["steps"][0]
    assert checkout["with"]["persist-credentials"] is False


def test_images_come_with_provenance_and_a_bill_of_materials(build):
    assert build["with"]["provenance"] == "mode=max"
    assert build["with"]["sbom"] is True


def test_the_build_is_told_what_the_dockerfile_takes(build):
    given = dict(line.split("=", 1) for line in build["with"]["build-args"].splitlines())
    before, known = parse(FILE.read_text())
    inside = [each.value for stage in known.values() for each in stage.all("ARG")]
    taken = {each.partition("=")[0] for each in [*before, *inside]}
    assert set(given) == taken - {"PYTHON_IMAGE", "CUDA_IMAGE"}  # which the file pins
    assert build["with"]["file"] == str(FILE.relative_to(ROOT))

"""Bills of materials: what they name, and that they are CycloneDX."""

import json
import sys
from importlib.metadata import PathDistribution, distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from support.commands import ROOT

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u13
Description: library
 Package: not this one

Package: bash
Status: install ok installed
Architecture: amd64
Version: 1:5.2.15-2+b8

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1.0
"""
PAPERS = (
    "Format: 1.0\n\nFiles: *\nLicense: GPL-3+\n text\n\nFiles: b\nLicense: MIT\n\nLicense: MIT\n"
)


@pytest.fixture(scope="module")
def sbom():
    spec = spec_from_file_location("image_sbom", ROOT / "images" / "sbom.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def system(tmp_path):
    """The root of a small Debian."""
    for name, text in {
        "var/lib/dpkg/status": STATUS,
        "etc/os-release": 'NAME="Debian GNU/Linux"\nID=debian\n',
        "usr/share/doc/bash/copyright": PAPERS,
        "usr/share/doc/libc6/copyright": "This is free software.\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def package(folder, name, *lines, version="1.0"):
    """An installed package with this metadata."""
    home = folder / f"{name}-{version}.dist-info"
    home.mkdir(parents=True)
    text = "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines])
    (home / "METADATA").write_text(text + "\n")
    return PathDistribution(home)


def part(bill, name):
    (found,) = [each for each in bill["components"] if each["name"] == name]
    return found


def licenses(bill, name):
    return [
        each.get("expression") or each["license"].get("id") or each["license"]["name"]
        for each in part(bill, name)["licenses"]
    ]


def test_the_bill_of_this_environment_is_cyclonedx(sbom):
    bill = sbom.bill("slipstream-test", Path("/"), distributions())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None


def test_licences_are_expressions_else_classifiers_else_the_packages_words(sbom, tmp_path):
    found = [
        package(tmp_path, "one", "License-Expression: MIT OR Apache-2.0", "License: else"),
        package(
            tmp_path,
            "two",
            "License: long text",
            "Classifier: License :: OSI Approved :: MIT License",
        ),
        package(tmp_path, "three", "License: BSD and such"),
        package(tmp_path, "four"),
    ]
    bill = sbom.bill("image", tmp_path, found)
    assert licenses(bill, "one") == ["MIT OR Apache-2.0"]
    assert licenses(bill, "two") == ["MIT License"]
    assert licenses(bill, "three") == ["BSD and such"]
    assert licenses(bill, "four") == ["not stated"]


def test_packages_of_the_system_are_in_it_where_they_are_installed(sbom, system):
    bill = sbom.bill("image", system, [])
    assert {each["name"] for each in bill["components"]} == {"python", "libc6", "bash"}
    assert part(bill, "python")["version"] == ".".join(map(str, sys.version_info[:3]))
    assert part(bill, "libc6")["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64"
    assert part(bill, "bash")["version"] == "1:5.2.15-2+b8"
    assert licenses(bill, "bash") == ["GPL-3+", "MIT"]
    assert licenses(bill, "libc6") == ["see /usr/share/doc/libc6/copyright"]


def test_what_needs_what_is_said_of_packages_that_are_there(sbom, tmp_path):
    found = [
        package(
            tmp_path,
            "Top.Package",
            "Requires-Dist: low_package>=1",
            "Requires-Dist: elsewhere",
            'Requires-Dist: low-package; extra == "more"',
            version="2+cpu",
        ),
        package(tmp_path, "low-package"),
    ]
    bill = sbom.bill("image", tmp_path, found)
    edges = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert edges["pkg:pypi/top-package@2%2Bcpu"] == ["pkg:pypi/low-package@1.0"]
    assert edges["pkg:pypi/low-package@1.0"] == []
    assert set(edges["image"]) == {each["bom-ref"] for each in bill["components"]}


def test_the_same_packages_make_the_same_bill_in_any_order(sbom, tmp_path):
    found = [package(tmp_path, name) for name in ("a", "b", "c")]
    one = sbom.bill("image", tmp_path, found)
    assert sbom.bill("image", tmp_path, found[::-1]) == one
    other = sbom.bill("image", tmp_path, found[:2])
    assert other["serialNumber"] != one["serialNumber"]

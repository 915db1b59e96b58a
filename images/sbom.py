"""The bill of materials of an image, as CycloneDX JSON, out of what is installed in it.

Run in a stage that has the image's own files, by the interpreter that the image runs:
`python3 sbom.py NAME FILE`. Needs the standard library only and no network, and writes the
same bytes for the same packages, however the image is made.
"""

import json
import platform
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

DPKG_STATUS = Path("var/lib/dpkg/status")
UNKNOWN = "not stated"
_FIELD = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", re.MULTILINE)
_DEBIAN_LICENSE = re.compile(r"^License: *(\S.*)$", re.MULTILINE)
_CLASSIFIER = "License :: "
_NAME = re.compile(r"[A-Za-z0-9._-]+")

Component = dict[str, Any]


def bill(name: str, root: Path, found: Iterable[Distribution]) -> dict[str, Any]:
    """Return the bill of an image: `found` of Python, and the packages of the system."""
    python = {normal(each.name): each for each in found}
    parts = [_interpreter(), *map(_python, python.values()), *_system(root)]
    parts.sort(key=lambda part: part["bom-ref"])
    refs = {key: _purl(each) for key, each in python.items()}
    edges = [{"ref": refs[key], "dependsOn": _needed(each, refs)} for key, each in python.items()]
    image = {"type": "container", "bom-ref": name, "name": name, "version": _own_version()}
    top = {"ref": name, "dependsOn": [part["bom-ref"] for part in parts]}
    content = {
        "metadata": {"lifecycles": [{"phase": "build"}], "component": image},
        "components": parts,
        "dependencies": [top, *sorted(edges, key=lambda edge: str(edge["ref"]))],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **content,
    }


def normal(name: str) -> str:
    """Return the normalized name of a Python package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _own_version() -> str:
    try:
        return version("slipstream")
    except PackageNotFoundError:
        return "0"


def _interpreter() -> Component:
    number = platform.python_version()
    purl = f"pkg:generic/python@{number}"
    return {
        "type": "platform",
        "bom-ref": purl,
        "name": "python",
        "version": number,
        "licenses": [{"license": {"id": "PSF-2.0"}}],
        "purl": purl,
    }


def _python(found: Distribution) -> Component:
    purl = _purl(found)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": found.name,
        "version": found.version,
        "licenses": _licenses(found),
        "purl": purl,
    }


def _purl(found: Distribution) -> str:
    return f"pkg:pypi/{normal(found.name)}@{quote(found.version, safe='')}"


def _licenses(found: Distribution) -> list[dict[str, Any]]:
    """Return the SPDX expression where a package has one, else its own words."""
    metadata = found.metadata
    if expression := metadata["License-Expression"]:
        return [{"expression": expression}]
    classifiers = [each for each in metadata.get_all("Classifier") or () if _CLASSIFIER in each]
    names = [each.rpartition(" :: ")[2] for each in classifiers]
    own_words = str(metadata["License"] or "").strip()
    if not names and own_words:
        names = [own_words.splitlines()[0]]
    return _named(names)


def _named(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"license": {"name": name}} for name in dict.fromkeys(names or [UNKNOWN])]


def _needed(found: Distribution, refs: dict[str, str]) -> list[str]:
    """Return the installed packages that a package requires without any extra."""
    plain = [each for each in found.requires or () if "extra ==" not in each]
    names = [match.group() for each in plain if (match := _NAME.match(each))]
    return sorted({refs[key] for key in map(normal, names) if key in refs})


def _system(root: Path) -> Iterator[Component]:
    """Yield the packages of Debian or Ubuntu; none where there is no list of them."""
    status = root / DPKG_STATUS
    if not status.exists():
        return
    distribution = _distribution(root)
    for paragraph in status.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            yield _debian(fields, distribution, root)


def _distribution(root: Path) -> str:
    lines = (root / "etc/os-release").read_text(encoding="utf-8").splitlines()
    return next((line[3:].strip('"') for line in lines if line.startswith("ID=")), "debian")


def _debian(fields: dict[str, str], distribution: str, root: Path) -> Component:
    name, number = fields["Package"], fields["Version"]
    at = f"pkg:deb/{distribution}/{quote(name, safe='')}@{quote(number, safe='')}"
    purl = f"{at}?arch={fields['Architecture']}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": number,
        "licenses": _named(_debian_licenses(root, name)),
        "purl": purl,
    }


def _debian_licenses(root: Path, name: str) -> list[str]:
    """Return the short names of a package's licences, or their files where those are only prose."""
    papers = Path("usr/share/doc") / name / "copyright"
    if not (root / papers).exists():
        return []
    text = (root / papers).read_text(encoding="utf-8", errors="replace")
    found = {each.strip() for each in _DEBIAN_LICENSE.findall(text)}
    return sorted(found) or [f"see /{papers}"]


def main(argv: Sequence[str]) -> None:
    name, file = argv
    made = bill(name, Path("/"), distributions())
    Path(file).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Rules of this house that no other tool checks."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import budgets
from support.commands import IMPORT_PATH, PACKAGE_DIRS, ran

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION_LINES = 40
MAX_FILE_LINES = 300
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
BINARY = {".safetensors", ".binpb", ".png", ".gz"}

# Assembled here so that this file does not break its own rule.
REGISTRY_HOSTS = [
    name + "." + domain
    for name, domain in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("huggingface", "co"),
        ("download.pytorch", "org"),
        ("npmjs", "org"),
    ]
]
MACHINE_PATH = re.compile(r"(?<![\w./~])/(?:root|work|home|opt|tmp|mnt|Users)/\w")


def project_files() -> list[Path]:
    found = ran("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    if found.returncode == 0:
        names = found.stdout.splitlines()
    else:  # an unpacked source distribution
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def sources() -> list[Path]:
    found = [path for path in project_files() if path.suffix == ".py"]
    return [path for path in found if not GENERATED.search(path.name)]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    # The environment's PYTHONPATH, if any, must not decide what these commands see.
    env = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    return ran(sys.executable, *command, cwd=ROOT, env=env)


def test_functions_fit_on_a_screen():
    too_long = [
        f"{name(path)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def test_files_stay_short():
    sizes = {name(path): len(path.read_text().splitlines()) for path in sources()}
    assert {path: size for path, size in sizes.items() if size > MAX_FILE_LINES} == {}


@pytest.mark.parametrize("budget", budgets.BUDGETS, ids=lambda budget: budget.title)
def test_the_code_stays_within_its_budget(budget):
    assert budget.measure() <= budget.limit


def test_package_markers_hold_no_code():
    allowed = {"slipstream/__init__.py", "slipstream/client/__init__.py"}
    markers = [path for folder in budgets.PRODUCT for path in folder.rglob("__init__.py")]
    assert {name(path) for path in markers if path.read_text().strip()} <= allowed


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in {"environ", "environb", "getenv"}
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in {"environ", "environb", "getenv"} for alias in node.names)
    return False


def test_only_config_reads_the_environment():
    readers = [
        name(path)
        for path in budgets.python_files(*budgets.PRODUCT)
        if any(reads_environment(node) for node in ast.walk(ast.parse(path.read_text())))
    ]
    assert readers == ["slipstream/config.py"]


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_no_file_names_a_registry_host(host):
    assert [name(p) for p in project_files() if p.suffix not in BINARY and host in text(p)] == []


def test_no_file_names_a_path_of_one_machine():
    found = [
        f"{name(path)}: {match.group()}"
        for path in project_files()
        if path.suffix not in BINARY
        for match in [MACHINE_PATH.search(text(path))]
        if match
    ]
    assert found == []


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/internals.md"]
)
def test_every_source_file_that_a_page_names_exists(page):
    named = re.findall(r"`((?:\w+/)+\w+\.py)", text(ROOT / page))
    folders = (ROOT / "slipstream", *PACKAGE_DIRS)
    assert [path for path in named if not any((at / path).exists() for at in folders)] == []


def test_the_sdk_and_the_command_line_load_without_torch():
    for module in ("slipstream.client", "slipstream.cli.main", "slipstream.config"):
        whole = "; slipstream.cli.main.app_of(())" if module == "slipstream.cli.main" else ""
        code = f"import sys, {module}{whole}; sys.exit('torch' in sys.modules)"
        assert run("-c", code).returncode == 0, module

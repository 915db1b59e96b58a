"""Quick start and how-tos run as they stand, on the real model, and print what they show."""

from pathlib import Path

import pytest

import helm_tool
from slipstream.models.format.resolve import find_local
from support.deployment import pages
from support.state.redis_server import valkey_binary


@pytest.fixture
def tools(tmp_path):
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


@pytest.fixture
def checkout(tmp_path):
    """A folder with all that the repository's has."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for entry in pages.ROOT.iterdir():
        if entry.name not in (".git", ".venv"):
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="session")
def models(real_model, tmp_path_factory):
    """The cache of models of all pages: what the first of them measures need not be again."""
    folder = tmp_path_factory.mktemp("models")
    for name in pages.MODELS:
        (folder / name).symlink_to(find_local(name))
    return folder


def bring(page: Path, tools: Path) -> None:
    """Put what a page calls for into the folder of tools; skips where it is not to be had."""
    text = page.read_text()
    if "redis-server" in text:
        (tools / "redis-server").symlink_to(valkey_binary())
    if "helm " in text:
        helm = helm_tool.HELMS[-1]
        if why := helm_tool.missing(helm):
            pytest.skip(why)
        (tools / "helm").symlink_to(helm.path)


@pytest.mark.real
@pytest.mark.timeout(600)  # what hangs is ended before that, and told of
@pytest.mark.parametrize("page", pages.SESSIONS, ids=lambda page: page.stem)
def test_a_page_runs_as_it_stands_prints_what_it_shows_and_stops_what_it_starts(
    models, page, checkout, tools, compiler, monkeypatch
):
    monkeypatch.setenv("CXX", compiler)
    bring(page, tools)
    todo = pages.blocks(page.read_text())
    assert todo
    done = pages.run(todo, checkout, tools=tools, models=models)
    for block in todo:
        said = done.said.get(block.line)
        where = f"{page.relative_to(pages.ROOT)}:{block.line}"
        assert said is not None, told(f"{where} was not reached", done, block)
        line = pages.missing(block.shown, said)
        assert line is None, told(f"{where} did not print {line!r}", done, block)
    assert done.code == 0, told(f"{page.name} ended with {done.code}", done, todo[-1])
    assert not done.has_leftovers, f"{page.name} leaves processes running"


def told(what: str, done: pages.Outcome, block: pages.Block) -> str:
    """A failure, with the block and everything that was printed."""
    lines = [what, "the block:", block.code]
    for number, said in done.said.items():
        lines += [f"printed by line {number}:", *said]
    return "\n".join(lines)

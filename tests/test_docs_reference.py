"""The pages of docs/reference say what the code says. Run as a program, it writes them anew."""

import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from ruff import find_ruff_bin

from reference import compatibility_page

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NAMES = ("cli", "sdk", "values", "metrics")
PAGES = {name: import_module(f"reference.{name}_page").page for name in NAMES}
PAGES["../compatibility"] = compatibility_page.page
NOTE = "<!-- Written by `make docs` out of the code; changes by hand are lost. -->\n\n"


def written(name: str) -> str:
    """A page; code in it has the form of all code."""
    text = f"{NOTE}{PAGES[name]().rstrip()}\n"
    words = [find_ruff_bin(), "format", "--stdin-filename", "page.md", "-"]
    return subprocess.run(words, input=text, text=True, check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name):
    assert (FOLDER / f"{name}.md").read_text() == written(name), "make docs writes it anew"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(written(name))

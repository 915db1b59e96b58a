"""The site of the documentation: it builds, is whole, and loads nothing from elsewhere."""

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from reference.site_hook import with_links
from support.commands import ran

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FRONT = [*(f"{at}.md" for at in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY"))]
FRONT += ["helm/slipstream/README.md"]
"""Pages for the repository, which are no part of the site."""
LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
STYLES = re.compile(r"""(?:url\(|@import\s+)\s*["']?((?:https?:)?//[^"')\s]+)""")


@dataclass
class Found(HTMLParser):
    """What a page loads, and what can be led to."""

    loads: set[str] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if values.get(LOADING.get(tag, "")):
            self.loads.add(values[LOADING[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. A warning of MkDocs, as of a link that leads nowhere, is an error here."""
    folder = tmp_path_factory.mktemp("site")
    build = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder)
    report = ran(*build, cwd=ROOT, env={"NO_MKDOCS_2_WARNING": "1"})
    assert report.returncode == 0, report.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    found = {path: Found() for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    for path, page in found.items():
        page.feed(path.read_text(encoding="utf-8"))
    return found


def test_no_page_loads_anything_from_another_host(site, pages):
    loaded = [(path.name, at) for path, found in pages.items() for at in found.loads]
    assert len(loaded) > len(pages)
    assert [at for at in loaded if bool(urlsplit(at[1]).netloc)] == []
    styles = [at for path in site.rglob("*.css") for at in STYLES.findall(path.read_text())]
    assert styles == []


def test_every_picture_of_the_pages_has_a_description(pages):
    text = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    drawn = re.findall(r"!\[([^\]]*)\]\((\S+)\)", text)
    assert drawn
    assert [file for words, file in drawn if len(words) < 8] == []


@pytest.mark.parametrize("page", FRONT)
def test_links_of_pages_beside_the_site_lead_to_what_is_there(page, pages, site):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    lost = []
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        at = urlsplit(address)
        file = (ROOT / page).parent / at.path if at.path else ROOT / page
        built, whole = None, file.resolve()
        if DOCS in whole.parents and whole.suffix == ".md":
            built = site / whole.relative_to(DOCS).with_suffix(".html")
        if at.netloc:
            continue
        if not file.exists() or (built and at.fragment and at.fragment not in pages[built].anchors):
            lost.append(address)
    assert lost == []


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("", "[a](b.md), the values (`helm/slipstream/values.yaml`)"),
        ("https://x.example/r", "[a](b.md), [the values](https://x.example/r/helm/slipstream/values.yaml)"),
    ],
)  # fmt: skip
def test_a_link_out_of_the_pages_leads_to_the_repository_or_names_the_file(url, link):
    text = "[a](b.md), [the values](../helm/slipstream/values.yaml)"
    assert with_links(text, "page.md", ROOT, url) == link


def test_a_link_to_a_file_that_is_not_there_is_refused():
    from mkdocs.exceptions import PluginError

    with pytest.raises(PluginError, match=r"no/such\.file"):
        with_links("[a](../../no/such.file)", "how-to/page.md", ROOT, "")

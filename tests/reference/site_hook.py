"""What MkDocs is told beyond its settings: of links that leave docs/, and of pictures.
Knows pages as text; what stands in them is none of its business. A link to a file of the
repository leads to `extra.repository_url` (the environment's `REPOSITORY_URL`) where that is set,
and is the file's path otherwise. An SVG becomes part of its page, where the page's colours are."""

import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")
CELL = re.compile(r"<td[ >].*?</td>", re.DOTALL)
PICTURE = re.compile(r'<img alt="([^"]*)" src="([^":]+\.svg)" ?/?>')


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page with links that leave docs/ made links to the repository, or plain text."""
    del files
    url = str(config.extra.get("repository_url") or "").rstrip("/")
    root = Path(config.config_file_path).parent
    parts = FENCE.split(markdown)
    parts[::2] = [with_links(part, page.file.src_uri, root, url) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """The page with its SVG pictures in it, and bars in tables as the repository shows them."""
    del files
    folder = Path(config.docs_dir, page.file.src_uri).parent
    html = CELL.sub(lambda at: at[0].replace("\\|", "|"), html)
    return PICTURE.sub(lambda at: drawn(folder / at[2], at[1]), html)


def with_links(text: str, page: str, root: Path, url: str) -> str:
    """Links out of docs/ as they should be. Raises `PluginError` where there is no such file."""

    def out(at: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), at[2]))
        if path.startswith("docs/"):
            return at[0]
        if not (root / path).exists():
            raise PluginError(f"{page} has a link to {path}, but there is no such file")
        return f"[{at[1]}]({url}/{path}{at[3] or ''})" if url else f"{at[1]} (`{path}`)"

    return LINK.sub(out, text)


def drawn(file: Path, text: str) -> str:
    """An SVG as a part of a page; `text` says what is to be seen."""
    svg = re.sub(r"^\s*(<\?xml.*?\?>|<!--.*?-->)\s*", "", file.read_text(encoding="utf-8"))
    label = escape(text, quote=True)
    return svg.strip().replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)

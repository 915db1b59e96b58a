"""Every Python block of the user pages runs as it stands, against real services on a tiny model."""

import re
import subprocess
import sys

import pytest

from support.commands import IMPORT_PATH, ROOT
from support.deployment.pages import SESSIONS
from support.models import tiny_checkpoint
from support.network.certificates import certificates
from support.network.key_files import key as key_of
from support.network.key_files import write_keys
from support.services.cluster import running

DOCS = ROOT / "docs"
TOKEN = "open-sesame"
FRONT = DOCS / "http.md"
"""Its blocks need a front that speaks HTTP: `test_http_told` runs them."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    for page in sorted({*DOCS.glob("*.md")} - {*SESSIONS, FRONT}):
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(1)) + 1
            yield pytest.param(page, line, match[1], id=f"{page.name}:{line}")


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    model = tiny_checkpoint.save_checkpoint(folder / "tiny")
    # The pages leave limits to their defaults, which the tiny model's own context has no room for.
    tiny_checkpoint.change_config(model, max_position_embeddings=1024)
    made = certificates(folder)
    keys = write_keys(folder / "keys.toml", key_of("alice", TOKEN))
    safe = {"tls_cert": made.cert("router"), "tls_key": made.key("router"), "key_file": keys}
    draft = f"vanilla:{model}"
    with running(model, draft) as cluster, running(model, draft, **safe) as guarded:
        yield {
            "ADDRESS": cluster.address,
            "MODEL": str(model),
            "TLS_ADDRESS": guarded.address,
            "CA": made.ca,
            "TOKEN": TOKEN,
        }


def run_alone(code, names):
    given = "".join(f"{name} = {str(value)!r}\n" for name, value in names.items())
    subprocess.run(
        [sys.executable, "-c", given + code],
        env={"PYTHONPATH": IMPORT_PATH},
        stdout=subprocess.DEVNULL,
        check=True,
    )


@pytest.mark.parametrize(("page", "line", "code"), list(blocks()))
def test_a_block_of_the_documentation_runs(names, page, line, code):
    if "set_tracer_provider" in code:  # which a process does once, and for all
        return run_alone(code, names)
    padded = "\n" * (line - 1) + code  # so that tracebacks name the page's lines
    exec(compile(padded, page, "exec"), {"__name__": "__main__", **names})

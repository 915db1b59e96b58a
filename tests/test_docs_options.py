"""The tables of docs/services.md say what the code says. Run as a program, it writes them anew."""

import re
import tomllib
from pathlib import Path
from typing import get_origin

import pytest

from slipstream.config import load_config
from slipstream.core import errors
from slipstream.options import options_of, without_none
from slipstream.rpc.status import code_of
from slipstream.telemetry.config import SECTION, TelemetryConfig
from support.deployment.charts import CONFIGS

PAGE = Path(__file__).parents[1] / "docs" / "services.md"
TABLES = {role: CONFIGS[role] for role in ("target", "draft", "router", "http")}
TABLES[SECTION] = TelemetryConfig
"""Of the configuration file: one a service, and what all of them share."""
KINDS = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    Path: "path",
    tuple: "list",
}
TABLE = re.compile(r"(<!-- options of (\w+) -->\n).*?(<!-- end of options -->)", re.DOTALL)
ERROR = re.compile(r"^\| `([A-Z_]+)` \| (.*?) \|", re.MULTILINE)


def options_table(config: type) -> str:
    rows = [
        f"| `{at.name}` | {kind_text(at.kind)} | {default_text(at.default)} | {at.help} |"
        for at in options_of(config)
    ]
    return "\n".join(["| Option | Kind | Default | Meaning |", "| --- | --- | --- | --- |", *rows])


def kind_text(kind: object) -> str:
    some, _ = without_none(kind)
    return KINDS[get_origin(some) or some]


def default_text(default: object) -> str:
    if default is None or default == ():
        return "unset"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def with_tables(page: str) -> str:
    return TABLE.sub(lambda at: f"{at[1]}{options_table(TABLES[at[2]])}\n{at[3]}", page)


def test_the_page_has_the_options_that_the_services_have():
    page = PAGE.read_text()
    assert [at[2] for at in TABLE.finditer(page)] == list(TABLES)
    assert with_tables(page) == page, "python tests/test_docs_options.py writes the tables anew"


@pytest.mark.parametrize("section", TABLES)
def test_every_service_takes_the_configuration_file_of_the_page(tmp_path, section):
    (example,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert sorted(tomllib.loads(example)) == sorted(TABLES)
    file = tmp_path / "slipstream.toml"
    file.write_text(example)
    config = load_config(TABLES[section], section=section, file=file, env={})
    assert isinstance(config, TABLES[section])


def test_the_page_gives_every_error_its_status():
    listed = {
        name: code
        for code, names in ERROR.findall(PAGE.read_text())
        for name in re.findall(r"`(\w+)`", names)
    }
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert {name: code_of(kinds[name]("")).name for name in listed} == listed
    has_status = {name for name, kind in kinds.items() if code_of(kind("")).name != "INTERNAL"}
    assert has_status <= set(listed) | {"SessionClosed"}  # never sent


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))

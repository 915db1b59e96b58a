"""Fails where a package of locks/ has a known vulnerability that .ci/audit.toml does not allow.

pip-audit finds them; it must be installed beside the interpreter. An allowed one needs a reason,
and a date from which on it fails again.
"""

import datetime
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / ".ci" / "audit.toml"
BUILD_OF_ANOTHER = "torch-cpu.lock"
"""Lock of a version that torch-cuda.lock has too, with a name that databases do not list."""


def allowed(entries: Mapping[str, Any], today: datetime.date) -> list[str]:
    """IDs of vulnerabilities that are allowed today. `SystemExit` for an incomplete entry."""
    found = []
    for name, entry in entries.items():
        reason, until = entry.get("reason"), entry.get("until")
        if set(entry) != {"reason", "until"} or not str(reason).strip():
            sys.exit(f"{name} in {ALLOWED.name} needs a reason, a date `until`, and nothing else")
        if not isinstance(until, datetime.date):
            sys.exit(f"{name} in {ALLOWED.name} has until = {until!r}, which is no date")
        if until > today:
            found.append(name)
    return found


def command(lock: Path, ids: list[str]) -> list[str]:
    """The audit of one lock. Strict: it fails where the database does not know a package."""
    flags = ["--strict", "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    ignored = [word for each in ids for word in ("--ignore-vuln", each)]
    return [sys.executable, "-m", "pip_audit", *flags, *ignored, "--requirement", str(lock)]


def main() -> None:
    entries = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    ids = allowed(entries, datetime.datetime.now(datetime.UTC).date())
    locks = [each for each in sorted(ROOT.glob("locks/*.lock")) if each.name != BUILD_OF_ANOTHER]
    with tempfile.TemporaryDirectory() as scratch:
        failed = [
            lock.name
            for lock in locks
            if subprocess.run(command(lock, ids), cwd=scratch, check=False).returncode
        ]
    sys.exit(f"the audit of {', '.join(failed)} failed" if failed else 0)


if __name__ == "__main__":
    main()

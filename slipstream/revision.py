"""Commit of the checkout that the running code came from, by git."""

import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def code_revision() -> str | None:
    """The commit, "-dirty" appended when the packages differ from it; None if installed."""
    if not (_ROOT / ".git").exists():
        return None  # a repository further up is another one
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git("status", "--porcelain", "--", "slipstream", "services")
    return commit if changes == "" else f"{commit}-dirty"


def _git(*arguments: str) -> str | None:
    command = ["git", *arguments]
    try:
        result = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()

"""Exit codes of commands and services."""

FAILED = 1
"""Exit code of a process that failed; another attempt may succeed."""
BAD_INPUT = 2
"""Exit code of a process with options or models that it can't use; another attempt fails too."""
INTERRUPTED = 130

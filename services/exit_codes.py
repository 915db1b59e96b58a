"""Exit codes of commands and services."""

BAD_INPUT = 2
"""Exit code of a process that was told what it can't use; there is no sense in trying again."""
FAILED = 1
"""Exit code of one that failed in any other way."""
INTERRUPTED = 130
"""Exit code of a command that was interrupted."""

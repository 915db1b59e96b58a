"""Text that others have written, as one line that logs and errors may carry."""

MAX_CHARS = 1000


def printable(text: str, *, max_chars: int = MAX_CHARS) -> str:
    """Return the text with a space for every character that can't be printed, and cut.

    >>> printable("no" + chr(10) + "FORGED", max_chars=5)
    'no FO (5 of 9 characters)'
    """
    line = "".join(char if char.isprintable() else " " for char in text[:max_chars])
    if len(text) <= max_chars:
        return line
    return f"{line} ({max_chars} of {len(text)} characters)"

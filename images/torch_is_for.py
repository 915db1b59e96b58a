"""Ends with an error where the installed torch is not one for this device: `cpu` or `cuda`.

The index that pip asks decides which torch it gets, and the wrong one shows late: gigabytes too
much, or a service that can't find its GPUs.
"""

import sys
from collections.abc import Sequence

HINT = "hand in a pip.conf with the index of the right one, as docs/images.md says"


def complaint(device: str, cuda: str | None) -> str | None:
    """What is wrong with a torch built for this version of CUDA, or none; None where nothing is."""
    if device not in {"cpu", "cuda"}:
        return f"DEVICE is cpu or cuda, not {device!r}"
    if (device == "cuda") == (cuda is not None):
        return None
    found = "without CUDA" if cuda is None else f"for CUDA {cuda}"
    return f"DEVICE is {device}, but pip took a torch {found}: {HINT}"


def main(argv: Sequence[str]) -> None:
    import torch  # noqa: PLC0415  # what this file says is known without it

    sys.exit(complaint(argv[0], torch.version.cuda))


if __name__ == "__main__":
    main(sys.argv[1:])

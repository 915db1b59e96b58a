"""How the store reports long steps. Who shows them, and how, is the caller's business."""

from typing import Protocol


class Progress(Protocol):
    """Told of every step; `total` is None while nobody knows how long the step is."""

    def step(self, description: str, *, total: int | None = None) -> None:
        """A step begins, and with it the one before has ended."""
        ...

    def advance(self, amount: int) -> None:
        """So many more of the step's total are done."""
        ...


class Silent:
    """Tells nobody."""

    def step(self, description: str, *, total: int | None = None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

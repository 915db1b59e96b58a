"""How many requests run at once, and whether more are let in. Knows nothing of what they ask."""

from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.core.errors import CapacityError, Unavailable


class Admission:
    """The door of the router."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self.num_requests = 0
        self.is_draining = False

    @property
    def has_room(self) -> bool:
        """Whether one more request would be let in."""
        return not self.is_draining and self.num_requests < self._max_requests

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request. Raises `Unavailable` while draining, `CapacityError` if full."""
        if self.is_draining:
            raise Unavailable("the router is about to stop")
        if self.num_requests >= self._max_requests:
            raise CapacityError(
                f"{self.num_requests} requests are running, the limit; try again later"
            )
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

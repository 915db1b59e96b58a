"""Constraints on the next token: the seam between distributions and grammars.

A constraint is a function of the tokens that a request has put out, of nothing else. So every node
of a tree has its own, and a replica that goes on with a request needs no state but the tokens.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """The tokens that a request's output may go on with."""

    def allowed(self, output: Sequence[int]) -> NDArray[np.int64] | None:
        """Ids [n] int64, ascending, at least one, of what may follow `output`, which is all of
        the request's own tokens before the position; None for anything.

        Raises `InvalidRequest` for an output that has left the form, and where it can't be
        followed any further.
        """
        ...

    def forced(self, output: Sequence[int]) -> tuple[int, ...]:
        """Return tokens that the form will most likely have follow `output`; a guess, not a rule.

        Raises what `allowed` does.
        """
        ...

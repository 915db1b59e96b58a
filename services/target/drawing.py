"""Which rows of a forward draw their token where the logits are, and what their tokens decide.

Only rows of requests that `core.draws` takes do; all others bring their logits. Knows no model.
"""

from collections.abc import Sequence

from slipstream.core.draws import draw_keys, fits_device
from slipstream.models.batched_tokens import Draw
from slipstream.target.verification import Share


def is_drawn(share: Share) -> bool:
    """Whether the rows that decide a share may draw on their own."""
    # Margins need the logits of a row, not its token alone.
    return share.is_last and not share.work.proposal.rivals and fits_device(share.work.session)


def draws_of(shares: Sequence[Share]) -> list[Draw]:
    """The draws of all shares that may, share by share: of the last final token, then of each
    node."""
    draws: list[Draw] = []
    end = 0
    for share in shares:
        end += share.num_rows
        if is_drawn(share):
            draws += _draws(share, end - 1 - share.work.num_nodes)
    return draws


def _draws(share: Share, first: int) -> list[Draw]:
    work = share.work
    sampling, position = work.session.sampling, len(work.tokens)
    depths = (0, *work.proposal.tree.depths())
    return [
        Draw(first + row, sampling.temperature, draw_keys(sampling, position + depth))
        for row, depth in enumerate(depths)
    ]

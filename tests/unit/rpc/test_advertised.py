"""Laws of advertised addresses: somebody must be able to dial them."""

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.rpc.protocol import check_advertised


@pytest.mark.parametrize(
    ("address", "advertised"),
    [("10.0.0.1:7", None), ("0.0.0.0:7", "10.0.0.1:7"), ("[::]:7", "target.example:7")],
)
def test_an_address_with_a_host_can_be_dialled(address, advertised):
    check_advertised(address, advertised, reader="router")


@pytest.mark.parametrize(
    ("address", "advertised"),
    [("0.0.0.0:7", None), ("[::]:7", None), (":7", None), ("a:7", "0.0.0.0:7"), ("a:7", "a")],
)
def test_an_address_that_nobody_can_dial_is_refused(address, advertised):
    with pytest.raises(InvalidRequest):
        check_advertised(address, advertised, reader="router")

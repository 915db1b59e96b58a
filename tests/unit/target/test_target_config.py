"""What a target can be told, and what it refuses to be told."""

from pathlib import Path

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.options import build
from slipstream.rpc.security import ServerTls
from slipstream_target.config import TargetConfig


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"threads": 0}, "threads is 0"),
        ({"max_sessions": 0}, "max_sessions is 0"),
        ({"max_park_ttl_s": float("nan")}, "max_park_ttl_s is nan"),
        ({"max_waiting": -1}, "max_waiting is -1"),
        ({"max_rows_per_step": 127}, "max_rows_per_step is 127, but must be at least 128"),
        ({"max_prompt_delay_ms": float("nan")}, "max_prompt_delay_ms is nan"),
        ({"max_prompt_delay_ms": -1.0}, "max_prompt_delay_ms is -1"),
        ({"kv_memory": "lots"}, "a memory budget is 'lots'"),
        ({"max_parked_bytes": -1}, "max_parked_bytes is -1"),
        ({"grace_s": -1.0}, "grace_s is -1"),
        ({"numerics": "exact"}, "numerics is 'exact'"),
        ({"advertised_address": "nowhere"}, "the address is 'nowhere'"),
        ({"address": "0.0.0.0:50061"}, "no draft can dial: set advertised_address"),
        ({"max_message_bytes": 10}, "max_message_bytes is 10"),
        ({"tls_cert": Path("c")}, "go together"),
        ({"tls_client_ca": Path("c")}, "tls_client_ca needs"),
    ],
)
def test_what_makes_no_sense_is_refused(values, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        build(TargetConfig, **values)


def test_files_of_certificates_become_the_server_s():
    config = build(TargetConfig, tls_cert=Path("c"), tls_key=Path("k"), tls_client_ca=Path("a"))
    assert config.server_options().tls == ServerTls(Path("c"), Path("k"), Path("a"))

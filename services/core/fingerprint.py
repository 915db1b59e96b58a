"""Whether two requests say the same. Pure."""

import hashlib
import json
from dataclasses import asdict, replace

from slipstream.core.request import Generation


def fingerprint(asked: Generation) -> str:
    """SHA-256 in hexadecimal of what a request says, but for its id and what its caller holds."""
    nameless = replace(asked, ask=replace(asked.ask, request_id=""), num_received=0)
    return hashlib.sha256(json.dumps(asdict(nameless), sort_keys=True).encode()).hexdigest()

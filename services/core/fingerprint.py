"""Whether two requests say the same. Pure."""

import hashlib
import json
from dataclasses import asdict, replace

from slipstream.core.prompt import checked_prompt
from slipstream.core.request import Generation


def fingerprint(asked: Generation) -> str:
    """SHA-256 in hexadecimal of what a request says of the answer that it wants.

    Not among that are its id, what its caller holds, whether its session is to begin, and what
    tokens are to say of themselves. Raises `InvalidRequest` for a prompt that is none.
    """
    prompt = checked_prompt(asked.prompt, raw=asked.ask.raw)
    session = asked.session and replace(asked.session, create=False)
    nameless = replace(
        asked,
        prompt=prompt,
        ask=replace(asked.ask, request_id="", with_origins=False, num_logprobs=None),
        session=session,
        num_received=0,
    )
    return hashlib.sha256(json.dumps(asdict(nameless), sort_keys=True).encode()).hexdigest()

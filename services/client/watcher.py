"""How a client comes to be watched: by the telemetry that its application has set up, if any.

Loads OpenTelemetry only where the application has: who has not, has nobody to tell.
"""

import sys
from dataclasses import replace

from slipstream.client.surface import Call
from slipstream.client.watch import UNWATCHED, Watch, Watcher
from slipstream.core.request import Generation

_TELEMETRY = "opentelemetry"


def watched(call: Call, watcher: Watcher, *, address: str | None, is_stream: bool) -> Call:
    """The call, with somebody who is told of it."""
    watch = watcher.watch(call.generation, address=address, is_stream=is_stream)
    return replace(call, watch=watch)


class ApplicationWatcher:
    """See `Watcher`: whatever the application has made global, whenever it did."""

    def __init__(self) -> None:
        self._watcher: Watcher | None = None

    def watch(self, asked: Generation, *, address: str | None, is_stream: bool) -> Watch:
        """See `Watcher.watch`."""
        if self._watcher is None:
            if _TELEMETRY not in sys.modules:
                return UNWATCHED
            from slipstream.telemetry.sdk_spans import SdkTelemetry

            self._watcher = SdkTelemetry()
        return self._watcher.watch(asked, address=address, is_stream=is_stream)

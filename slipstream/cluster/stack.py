"""The pools on Ray, and a router as a process beside them, until they are stopped.

The router finds the replicas in Redis.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray import serve

from slipstream.cluster.app import pools_of
from slipstream.cluster.plan import ClusterPlan
from slipstream.config import set_default_variables
from slipstream.core.errors import InvalidRequest, ServiceError
from slipstream.local.child import Child, OnLine, start_child

_SPARE_S = 5.0
"""Time beyond its own grace that the router gets before it is killed."""
_OBJECT_STORE_BYTES = 128 << 20
"""Size of Ray's object store, in which nothing of ours is kept."""
_LOCAL = "127.0.0.1"
_OUR_ERRORS = "slipstream.core.errors."
_RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing leaves by itself
    "RAY_worker_niceness": "0",  # requests wait for the models: they are no background jobs
}


class RayStack:
    """`connect` in the main thread, `start`, `watch`, `stop`, then `disconnect`."""

    def __init__(
        self,
        plan: ClusterPlan,
        address: str | None,
        name: str,
        *,
        router: Sequence[str],
        on_line: OnLine,
    ) -> None:
        """Plan the application `name` in the cluster of the head at `address`, or auto for this
        machine's; None starts one. `router` are flags of the router, but for where replicas are.
        """
        if address is not None and "://" in address:
            raise InvalidRequest(
                f"address is {address}, but must be HOST:PORT of the head, or auto: the router"
                " runs on a node of the cluster"
            )
        self._plan = replace(plan, host=_LOCAL) if address is None else plan
        self._address, self._name = address, name
        self._router_flags = router
        self._on_line = on_line
        self._router: Child | None = None

    def connect(self) -> None:
        """Join the cluster, or start one whose replicas only this machine reaches.

        Ray handles signals from then on. Raises `ServiceError`.
        """
        set_default_variables(_RAY_VARIABLES)
        options: dict[str, Any] = {"address": self._address}
        if self._address is None:
            options = {
                "address": "local",
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
            }
        try:
            ray.init(**options)
        except Exception as error:  # of many kinds
            raise ServiceError(f"there is no Ray cluster to use: {error}") from None

    async def start(self) -> str:
        """Deploy the pools and start a router; return its address once it can be used.

        Raises what `Child.ready` does, of a service in a pool too.
        """
        await asyncio.to_thread(self._deploy)
        sources = [flag for role in self._plan.pools() for flag in (f"--{role}s", "registry:")]
        flags = ["--store-url", self._plan.store_url, *sources, *self._router_flags]
        self._router = await start_child(
            "router", "slipstream_router", flags, on_line=self._on_line
        )
        return await self._router.ready()

    async def watch(self) -> None:
        """Wait for the end of the router, which is a `ServiceError`."""
        assert self._router is not None
        await self._router.ended()
        raise ServiceError(f"the router {self._router.exit_text()}, so everything stops")

    async def stop(self, *, hurry: bool = False) -> None:
        """End the router, then the pools; requests have the grace, unless in a hurry."""
        if self._router is not None:
            await self._router.stop(0.0 if hurry else self._plan.grace_s + _SPARE_S)
        if not hurry:
            await asyncio.to_thread(self._remove)

    def disconnect(self) -> None:
        """Leave the cluster, which ends with that if it is ours."""
        ray.shutdown()

    def _deploy(self) -> None:
        # Users reach the router: what Serve has for HTTP is not needed.
        serve.start(proxy_location="Disabled")
        try:
            serve.run(pools_of(self._plan), name=self._name, route_prefix=None)
        except RuntimeError as error:
            kind, reason = self._reason()
            is_input = kind == InvalidRequest.__name__
            reason = reason or str(error).strip().splitlines()[-1]
            text = f"the pools did not come up: {reason}"
            raise (InvalidRequest if is_input else ServiceError)(text) from None

    def _reason(self) -> tuple[str, str]:
        """Return the kind and text of the error of a service that did not start."""
        about = serve.status().applications.get(self._name)
        pools = about.deployments.values() if about is not None else ()
        lines = [line for pool in pools for line in pool.message.splitlines()]
        own = [line for line in lines if line.startswith(_OUR_ERRORS)]
        kind, _, text = own[-1].removeprefix(_OUR_ERRORS).partition(": ") if own else ("", "", "")
        return kind, text

    def _remove(self) -> None:
        if self._address is None:
            serve.shutdown()
        else:
            serve.delete(self._name)

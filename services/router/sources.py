"""Where a router's replicas are, as its configuration says. Opens the registry where needed."""

from collections.abc import Sequence

from slipstream.core.server_info import ReplicaRole
from slipstream.router.discovery import REGISTRY, Addresses, Source, parse_source
from slipstream.state.factory import open_registry
from slipstream.state.options import StoreOptions


class Sources:
    """The sources of both roles. `aclose` it."""

    def __init__(self, targets: Sequence[str], drafts: Sequence[str], store: StoreOptions) -> None:
        """Raises `InvalidRequest` for what names no source, or a registry without a store."""
        needs_registry = REGISTRY in (*targets, *drafts) and store.url is not None
        self._registry = open_registry(store) if needs_registry else None
        self.targets = self._source(targets, ReplicaRole.TARGET)
        self.drafts = self._source(drafts, ReplicaRole.DRAFT)

    async def aclose(self) -> None:
        """End connections. Again is fine."""
        if self._registry is not None:
            await self._registry.aclose()

    def _source(self, items: Sequence[str], role: ReplicaRole) -> Source:
        registry = self._registry
        if registry is None:
            return parse_source(items)

        async def registered() -> Addresses:
            return frozenset(at.address for at in await registry.live(role))

        return parse_source(items, registered=registered)

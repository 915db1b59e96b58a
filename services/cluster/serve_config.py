"""The pools as a configuration file of Ray Serve, for `serve deploy` and RayService."""

import json
from typing import Any

import yaml

from slipstream.cluster.plan import ClusterPlan
from slipstream.cluster.stack import NAME

IMPORT_PATH = "slipstream.cluster.app:build"


def serve_config(plan: ClusterPlan, *, name: str = NAME) -> str:
    """The file's text. Routers find what it deploys by the store that the plan names."""
    values: dict[str, Any] = {
        "proxy_location": "Disabled",
        "applications": [
            {
                "name": name,
                "import_path": IMPORT_PATH,
                "route_prefix": None,
                "args": json.loads(json.dumps(plan.arguments())),
            }
        ],
    }
    text: str = yaml.safe_dump(values, sort_keys=False)
    return text

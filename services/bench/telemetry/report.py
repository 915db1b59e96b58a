"""What has to be said beside the speed with telemetry: that something was told."""

from collections.abc import Mapping
from typing import Any


def telling_lines(figures: Mapping[str, Any]) -> list[str]:
    """Of what was exported and read."""
    exported, scraped = figures["exported"], figures["scraped"]
    lines = [
        f"{scraped['num_pages']} pages with {scraped['num_samples']} values were read, as by"
        f" Prometheus; {scraped['num_failed']} could not be."
    ]
    if exported is not None:
        lines.append(
            f"{exported['num_spans']} spans of {exported['num_traces']} requests and"
            f" {exported['num_points']} values of {exported['num_metrics']} metrics were exported."
        )
    return lines

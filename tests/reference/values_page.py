"""docs/reference/values.md: the values of the chart, as the chart's own README lists them."""

from test_chart_readme import VALUES, table

INTRODUCTION = """\
# Values of the chart

What `helm/slipstream` takes, from its `values.yaml`; anything else is refused.
[Kubernetes](../kubernetes.md) says how to install it. `ROLE` stands for `router`, `draft` and
`target`; where their defaults differ, they are in that order.
"""


def page() -> str:
    return INTRODUCTION + "\n" + table(VALUES.read_text()).replace("### ", "## ")

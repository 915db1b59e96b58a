"""A chat template that takes time or memory without end where the last message names how."""

from support.models.tiny_checkpoint import TEMPLATE

_MANY = "{% for a in range(99999) %}"
LOOP = _MANY * 3 + "{% endfor %}" * 3
ATTACKS = {
    "loop": LOOP,
    "power": "{{ ((9 + messages | length) ** (10 ** 8)) % 7 }}",
    "doubling": "{% set ns = namespace(text='ab') %}"
    "{% for a in range(99) %}{% set ns.text = ns.text ~ ns.text %}{% endfor %}",
    "product": "{{ ('a' * 10 ** 10) | length }}",
    "format": "{{ ('%0' ~ (10 ** 9) ~ 'd') % 1 }}",
    "recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "range": "{{ range(10 ** 9) | list }}",
}
"""Their expressions by name."""
HOSTILE = (
    "".join(
        f"{{% if messages[-1]['content'] == '{name}' %}}{attack}{{% endif %}}"
        for name, attack in ATTACKS.items()
    )
    + TEMPLATE
)

"""The dashboard of the policies: what they choose, and whether their predictions are right."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.dashboards import panels as p
from deploy.grafana.dashboards.frame import SELECTOR, fill, frame, label_variable
from deploy.grafana.dashboards.panels import PanelBuilder, Query

_CHOSEN = SELECTOR + ',policy=~"$policy"'
_DECISIONS = "specgate_policy_decisions_total"
_ERROR = "specgate_policy_step_error_seconds"
_SWITCH = "specgate_spec_method_switch_seconds"


def _rate(metric: str, selector: str = SELECTOR) -> str:
    return f"sum(rate({metric}{{{selector}}}[$__rate_interval]))"


def _by(labels: str, metric: str, selector: str) -> str:
    return f"sum by ({labels}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def _step_seconds(value: str) -> str:
    return _rate("specgate_policy_step_seconds_total", f'{SELECTOR},value="{value}"')


_ROWS = _by("proposer", _DECISIONS, _CHOSEN)
_PLAIN = _by("policy", _DECISIONS, _CHOSEN + ',proposer="none"')
_ROW_DECISIONS: list[PanelBuilder] = [
    p.graph(
        "Choices",
        "Rows per second of the shown policies, by the proposer that they chose for the step;"
        " `none` is plain decoding.",
        p.ROWS_PER_SECOND,
        Query(f"{_ROWS} > 0", "{{proposer}}"),
        stacked=True,
    ),
    p.graph(
        "Rows planned",
        "Rows per second that each policy planned.",
        p.ROWS_PER_SECOND,
        Query(_by("policy", _DECISIONS, _CHOSEN), "{{policy}}"),
        stacked=True,
    ),
    p.graph(
        "Plain decoding",
        "Share of a policy's rows that it planned without drafts. A policy that stays at 100 %"
        " finds no proposer that pays.",
        p.SHARE,
        Query(f"{_PLAIN} / ({_by('policy', _DECISIONS, _CHOSEN)} > 0)", "{{policy}}"),
        highest=1,
    ),
]


_EVERY = f"({_by('policy', _DECISIONS, _CHOSEN)} > 0)"
_SPREAD = _by("policy, proposer", _DECISIONS, _CHOSEN)
_PANEL = p.graph(
    "Choices of $policy",
    "Share of the policy's rows by the proposer that it chose for the step.",
    p.SHARE,
    Query(f"{_SPREAD} / on (policy) group_left () {_EVERY} > 0", "{{proposer}}"),
    highest=1,
    stacked=True,
)
_ROW_CHOICES: list[PanelBuilder] = [_PANEL.repeat("policy").repeat_direction("h").max_per_row(3)]


_STEPS = f"({_rate(f'{_ERROR}_count')} > 0)"
_MEASURED = f"({_step_seconds('measured')} > 0)"
_ROW_COST_MODEL: list[PanelBuilder] = [
    p.graph(
        "Step time, predicted and measured",
        "Mean time of the target's part of a step, as the cost model predicted it and as it was.",
        p.SECONDS,
        *[
            Query(f"{_step_seconds(value)} / {_STEPS}", value)
            for value in ("predicted", "measured")
        ],
    ),
    p.graph(
        "Bias of the prediction",
        "Predicted step time relative to the measured one; 1 has no bias.",
        p.RATIO,
        Query(f"{_step_seconds('predicted')} / {_MEASURED}", "predicted / measured"),
    ),
    p.graph(
        "Error of the prediction",
        "Mean absolute difference of predicted and measured step time, relative to the"
        " measured one.",
        p.SHARE,
        Query(f"{_rate(f'{_ERROR}_sum')} / {_MEASURED}", "mean error"),
    ),
    p.heat_map(
        "Spread of the error",
        "Steps by the absolute difference of predicted and measured time.",
        _ERROR,
        SELECTOR,
        width=24,
    ),
]


_ROW_GUARD: list[PanelBuilder] = [
    p.timeline(
        "Guard",
        "Held: the policy lost time against plain decoding, so its guard holds it there.",
        Query(
            f"max by (policy, instance) (specgate_policy_suspended{{{_CHOSEN}}})",
            "{{policy}}, {{instance}}",
        ),
        {"0": ("free", p.GREEN), "1": ("held at plain decoding", p.RED)},
        width=16,
    ),
    p.graph(
        "Requests under a policy",
        "Admitted requests per second whose method is a policy.",
        p.REQUESTS_PER_SECOND,
        Query(
            "label_replace(sum by (proposer) (rate(specgate_requests_total"
            f"{{{SELECTOR}}}[$__rate_interval])),"
            ' "policy", "$1", "proposer", "(.+)") and on (policy)'
            f" specgate_policy_suspended{{{_CHOSEN}}}",
            "{{policy}}",
        ),
        stacked=True,
    ),
]


_ROW_ROUTING: list[PanelBuilder] = [
    p.graph(
        "Requests by routing rule",
        "Requests per second whose method a rule decided; empty without routing rules.",
        p.REQUESTS_PER_SECOND,
        Query(_by("rule", "specgate_routing_rule_matches_total", SELECTOR), "{{rule}}"),
        width=6,
        stacked=True,
    ),
    p.graph(
        "Rules that cannot be used",
        "Requests per second that a rule matched while its method was missing or held;"
        " empty without routing rules.",
        p.REQUESTS_PER_SECOND,
        Query(_by("rule", "specgate_routing_rule_skips_total", SELECTOR), "{{rule}}"),
        width=6,
    ),
    p.graph(
        "Requests by what chose",
        "Requests per second by what decided their method: the request itself, a routing rule,"
        " or the active method.",
        p.REQUESTS_PER_SECOND,
        Query(_by("selected_by", "specgate_requests_total", SELECTOR), "{{selected_by}}"),
        width=6,
        stacked=True,
    ),
    p.graph(
        "Duration of switches",
        "Mean time until the engine confirmed a switch, by mode. A drain's time has the wait"
        " for its requests.",
        p.SECONDS,
        Query(
            f"{_by('mode', f'{_SWITCH}_sum', SELECTOR)}"
            f" / ({_by('mode', f'{_SWITCH}_count', SELECTOR)} > 0)",
            "{{mode}}",
        ),
        width=6,
        log=True,
    ),
]


def build() -> Dashboard:
    """The dashboard."""
    variable = label_variable(
        "policy",
        "Policy",
        "The policies to show",
        f"specgate_policy_suspended{{{SELECTOR}}}",
    )
    return fill(
        frame("policy", "Policy", "What the policies choose, and how well they predict.", variable),
        (
            ("Decisions", _ROW_DECISIONS),
            ("Cost model", _ROW_COST_MODEL),
            ("Guard", _ROW_GUARD),
            ("Routing rules and switches", _ROW_ROUTING),
            ("Choices by policy", _ROW_CHOICES),
        ),
    )

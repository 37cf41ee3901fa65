"""The dashboard of the proposers: what each accepts, what it costs, and whether it pays."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.dashboards import panels as p
from deploy.grafana.dashboards.frame import SELECTOR, fill, frame, label_variable
from deploy.grafana.dashboards.panels import PanelBuilder, Query

_CHOSEN = SELECTOR + ',proposer=~"$proposer"'
_PREFIX = "specgate_spec_decode"
_DRAFTING = "specgate_proposer_draft_seconds"
_STEP = "specgate_step_seconds"


def _rate(metric: str, selector: str = _CHOSEN, by: str = "proposer") -> str:
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def _mean_step(kind: str, window: str) -> str:
    """The mean time of a kind of step; no series if there was no such step."""
    chosen = f'{SELECTOR},kind="{kind}"'
    count = f"(sum(rate({_STEP}_count{{{chosen}}}[{window}])) > 0)"
    return f"sum(rate({_STEP}_sum{{{chosen}}}[{window}])) / {count}"


ACCEPTANCE = (
    f"{_rate(f'{_PREFIX}_accepted_tokens_total')} / ({_rate(f'{_PREFIX}_draft_tokens_total')} > 0)"
)
TOKENS_PER_STEP = (
    f"1 + {_rate(f'{_PREFIX}_accepted_tokens_total')} / ({_rate(f'{_PREFIX}_drafts_total')} > 0)"
)
# Plain steps are rare while a proposer is active: a mean of few of them would jump.
_PLAIN_STEP = f"({_mean_step('decode', '$__range')})"
_VERIFY_STEP = f"({_mean_step('verify', '$__rate_interval')})"
SPEED_UP = f"({TOKENS_PER_STEP}) * on () group_left () ({_PLAIN_STEP} / {_VERIFY_STEP})"


_ROW_ACCEPTANCE: list[PanelBuilder] = [
    p.graph(
        "Acceptance",
        "Accepted draft tokens relative to verified ones. A fall says that the text has"
        " changed, or that the proposer does not fit it.",
        p.SHARE,
        Query(ACCEPTANCE, "{{proposer}}"),
        highest=1,
    ),
    p.graph(
        "Tokens per step",
        "Mean tokens that a row gets from a step that verifies drafts of the proposer, with"
        " the target's own token. 1 is plain decoding.",
        p.TOKENS,
        Query(TOKENS_PER_STEP, "{{proposer}}"),
        lowest=1,
    ),
    p.graph(
        "Draft length",
        "Mean draft tokens that are verified in a row's step.",
        p.TOKENS,
        Query(
            f"{_rate(f'{_PREFIX}_draft_tokens_total')} / ({_rate(f'{_PREFIX}_drafts_total')} > 0)",
            "{{proposer}}",
        ),
    ),
]


_ACCEPTED = _rate(f"{_PREFIX}_accepted_tokens_per_position_total", by="proposer, position")
_DRAFTS = f"({_rate(f'{_PREFIX}_drafts_total')} > 0)"
_PANEL = p.graph(
    "Acceptance by position: $proposer",
    "Share of the proposer's drafts that were accepted up to and including a position; 0 is"
    " the first token. A steep fall says that shorter drafts would do.",
    p.SHARE,
    Query(f"{_ACCEPTED} / on (proposer) group_left () {_DRAFTS}", "position {{position}}"),
    width=6,
    highest=1,
)
_ROW_POSITIONS: list[PanelBuilder] = [
    _PANEL.repeat("proposer").repeat_direction("h").max_per_row(4)
]


def _draft_quantile(share: float) -> str:
    buckets = _rate(f"{_DRAFTING}_bucket", by="proposer, le")
    return f"histogram_quantile({share}, {buckets})"


_ROW_COSTS: list[PanelBuilder] = [
    p.graph(
        "Draft latency, median",
        "Seconds that the proposer takes in a step in which it drafts or reads prompts.",
        p.SECONDS,
        Query(_draft_quantile(0.5), "{{proposer}}"),
        log=True,
    ),
    p.graph(
        "Draft latency, p95",
        "As the median; 95 % of the steps were faster.",
        p.SECONDS,
        Query(_draft_quantile(0.95), "{{proposer}}"),
        log=True,
    ),
    p.graph(
        "Drafting per draft token",
        "Seconds of drafting for each draft token that is verified.",
        p.SECONDS,
        Query(
            f"({_rate(f'{_DRAFTING}_sum')} > 0) / ({_rate(f'{_PREFIX}_draft_tokens_total')} > 0)",
            "{{proposer}}",
        ),
        log=True,
    ),
    p.graph(
        "Share of the step time",
        "Seconds of drafting relative to the seconds of all steps.",
        p.SHARE,
        Query(
            f"{_rate(f'{_DRAFTING}_sum')} / on () group_left ()"
            f" (sum(rate({_STEP}_sum{{{SELECTOR}}}[$__rate_interval])) > 0)",
            "{{proposer}}",
        ),
        stacked=True,
    ),
    p.graph(
        "Catch-up",
        "Positions per second that a proposer reads before it can draft, after a switch or"
        " a prefix hit.",
        p.TOKENS_PER_SECOND,
        Query(_rate("specgate_proposer_catchup_tokens_total"), "{{proposer}}"),
    ),
    p.graph(
        "Failed steps",
        "Steps per second in which the proposer failed and its rows were decoded plainly.",
        p.STEPS_PER_SECOND,
        Query(_rate("specgate_proposer_errors_total"), "{{proposer}}"),
    ),
    p.timeline(
        "State",
        "A proposer that fails repeatedly is quarantined: it drafts nothing until it is"
        " unloaded and loaded again.",
        Query(f"max by (proposer) (specgate_proposer_quarantined{{{_CHOSEN}}})", "{{proposer}}"),
        {"0": ("drafts", p.GREEN), "1": ("quarantined", p.RED)},
    ),
]


_EMITTED = f"{_PREFIX}_emitted_tokens_total"
_ROW_GAINS: list[PanelBuilder] = [
    p.graph(
        "Share of the tokens",
        "Tokens by the proposer whose drafts the step verified. `none` is all other tokens,"
        " the first one of each sequence too.",
        p.SHARE,
        Query(
            f"{_rate(_EMITTED, SELECTOR)} / on () group_left ()"
            f" (sum(rate({_EMITTED}{{{SELECTOR}}}[$__rate_interval])) > 0)",
            "{{proposer}}",
        ),
        highest=1,
        stacked=True,
    ),
    p.graph(
        "Tokens per second",
        "Tokens by the proposer whose drafts the step verified.",
        p.TOKENS_PER_SECOND,
        Query(_rate(_EMITTED, SELECTOR), "{{proposer}}"),
        stacked=True,
    ),
    p.graph(
        "Speed-up against none (estimate)",
        "Tokens per step, times the mean plain step of the shown time, divided by the mean step"
        " that verifies; below 1 the proposer costs time. Proposers that draft at the same time"
        " share the step time, and plain steps may have had other batch sizes.",
        p.RATIO,
        Query(SPEED_UP, "{{proposer}}"),
    ),
    p.graph(
        "Efficiency",
        "Emitted tokens relative to those of perfect drafts of the same length.",
        p.SHARE,
        Query(
            f"({_rate(f'{_PREFIX}_accepted_tokens_total')}"
            f" + {_rate(f'{_PREFIX}_drafts_total')})"
            f" / (({_rate(f'{_PREFIX}_draft_tokens_total')}"
            f" + {_rate(f'{_PREFIX}_drafts_total')}) > 0)",
            "{{proposer}}",
        ),
        highest=1,
    ),
    p.graph(
        "Rejected draft tokens",
        "Draft tokens per second that were verified in vain.",
        p.TOKENS_PER_SECOND,
        Query(
            f"{_rate(f'{_PREFIX}_draft_tokens_total')}"
            f" - {_rate(f'{_PREFIX}_accepted_tokens_total')}",
            "{{proposer}}",
        ),
    ),
    p.graph(
        "Requests",
        "Admitted requests by their method: a proposer, a policy or `none`.",
        p.REQUESTS_PER_SECOND,
        Query(f"{_rate('specgate_requests_total', SELECTOR)} > 0", "{{proposer}}"),
        stacked=True,
    ),
]


def build() -> Dashboard:
    """The dashboard."""
    variable = label_variable(
        "proposer",
        "Proposer",
        "The proposers to show",
        f"{_PREFIX}_drafts_total{{{SELECTOR}}}",
    )
    return fill(
        frame("proposers", "Proposers", "Acceptance, cost and gain of each proposer.", variable),
        (
            ("Acceptance", _ROW_ACCEPTANCE),
            ("Gain", _ROW_GAINS),
            ("Cost", _ROW_COSTS),
            ("Acceptance by position", _ROW_POSITIONS),
        ),
    )

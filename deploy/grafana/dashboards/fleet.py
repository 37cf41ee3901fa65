"""The dashboard of several servers: each instance beside the others."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.dashboards import panels as p
from deploy.grafana.dashboards.frame import GENERATION, NAMED, SELECTOR, fill, frame
from deploy.grafana.dashboards.panels import PanelBuilder, Query

_REQUESTS = "specgate_http_requests_total"
_LEGEND = "{{instance}}"


def _rate(metric: str, selector: str = SELECTOR, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', by='instance, le')})"


# `up` of the targets that are servers, also while they do not answer.
_SERVERS = f"max_over_time({NAMED}{{{SELECTOR}}}[$__range])"
_UP = f"up{{{SELECTOR}}} and on (job, instance) {_SERVERS}"
_ROW_STATE: list[PanelBuilder] = [
    p.tile(
        "Instances up",
        "Servers that answer Prometheus now.",
        p.COUNT,
        Query(f"sum({_UP})", "up"),
    ),
    p.tile(
        "Instances down",
        "Servers that answered in the shown time and do not answer now.",
        p.COUNT,
        Query(f"count({_UP}) - sum({_UP})", "down"),
        p.steps((None, p.GREEN), (1, p.RED)),
    ),
    p.tile(
        "Active methods",
        "How many different methods are active. More than one: a switch reached only some of"
        " the instances.",
        p.COUNT,
        Query(f"count(count by (spec_method) ({NAMED}{{{SELECTOR}}}))", "methods"),
        p.steps((None, p.GREEN), (2, p.ORANGE)),
    ),
    p.tile(
        "Tokens generated",
        "Tokens per second of all shown instances, lately.",
        p.TOKENS_PER_SECOND,
        Query(
            f"sum(rate(vllm:generation_tokens_total{{{SELECTOR}}}[$__rate_interval]))",
            "generated",
        ),
    ),
    p.tile(
        "Sequences waiting",
        "Sequences that wait on the instance with the longest queue.",
        p.COUNT,
        Query(f"max(sum by (instance) (vllm:num_requests_waiting{{{SELECTOR}}}))", "waiting"),
        p.steps((None, p.GREEN), (10, p.ORANGE), (50, p.RED)),
    ),
    p.tile(
        "Engine restarts",
        "Attempts to replace a dead engine process in the shown time.",
        p.COUNT,
        Query(
            f"round(sum(increase(specgate_engine_restarts_total{{{SELECTOR}}}[$__range])))",
            "restarts",
        ),
        p.steps((None, p.GREEN), (1, p.RED)),
    ),
    p.timeline(
        "Answers",
        "Whether each server answered Prometheus.",
        Query(_UP, _LEGEND),
        {"0": ("down", p.RED), "1": ("up", p.GREEN)},
        width=6,
    ),
    p.timeline(
        "Engine",
        "Whether each engine serves. Loading: at the start, or in place of one that died.",
        Query(
            f"min by (instance) (specgate_engine_up{{{SELECTOR}}})"
            f" - max by (instance) (specgate_engine_given_up{{{SELECTOR}}})",
            _LEGEND,
        ),
        {"-1": ("given up", p.RED), "0": ("loading", p.ORANGE), "1": ("serving", p.GREEN)},
        width=6,
    ),
    p.timeline(
        "Active method",
        "The method of each instance over time; a bar ends when another method becomes active.",
        Query(
            f"max by (instance, spec_method) ({NAMED}{{{SELECTOR}}})",
            "{{instance}}: {{spec_method}}",
        ),
        {"1": ("active", p.BLUE)},
        width=6,
    ),
    p.graph(
        "Instances by active method",
        "How many instances have each method as their active one.",
        p.COUNT,
        Query(f"count by (spec_method) ({NAMED}{{{SELECTOR}}})", "{{spec_method}}"),
        width=6,
        stacked=True,
    ),
]


_ROW_LOAD: list[PanelBuilder] = [
    p.graph(
        "Tokens per second",
        "Generated tokens by instance.",
        p.TOKENS_PER_SECOND,
        Query(_rate("vllm:generation_tokens_total"), _LEGEND),
        stacked=True,
    ),
    p.graph(
        "Running",
        "Sequences in the batch by instance.",
        p.COUNT,
        Query(f"sum by (instance) (vllm:num_requests_running{{{SELECTOR}}})", _LEGEND),
    ),
    p.graph(
        "Waiting",
        "Sequences that wait to be scheduled, by instance. A balancer that ignores queues shows"
        " here.",
        p.COUNT,
        Query(f"sum by (instance) (vllm:num_requests_waiting{{{SELECTOR}}})", _LEGEND),
    ),
    p.graph(
        "KV cache",
        "Share of the KV blocks in use.",
        p.SHARE,
        Query(f"max by (instance) (vllm:kv_cache_usage_perc{{{SELECTOR}}})", _LEGEND),
    ),
    p.graph(
        "Time to first token, p95",
        "95 % of the sequences had their first token sooner.",
        p.SECONDS,
        Query(_quantile(0.95, "vllm:time_to_first_token_seconds"), _LEGEND),
    ),
    p.graph(
        "Time per output token, mean",
        "Mean pause between tokens of finished sequences.",
        p.SECONDS,
        Query(
            f"{_rate('vllm:request_time_per_output_token_seconds_sum')}"
            f" / ({_rate('vllm:request_time_per_output_token_seconds_count')} > 0)",
            _LEGEND,
        ),
    ),
]


_ACCEPTED = _rate("specgate_spec_decode_accepted_tokens_total")
_ROW_SPECULATION: list[PanelBuilder] = [
    p.graph(
        "Acceptance",
        "Accepted draft tokens relative to verified ones, of all proposers.",
        p.SHARE,
        Query(f"{_ACCEPTED} / ({_rate('specgate_spec_decode_draft_tokens_total')} > 0)", _LEGEND),
        highest=1,
    ),
    p.graph(
        "Tokens per step",
        "Mean tokens that a row gets from a step that verifies drafts; 1 is plain decoding.",
        p.TOKENS,
        Query(f"1 + {_ACCEPTED} / ({_rate('specgate_spec_decode_drafts_total')} > 0)", _LEGEND),
        lowest=1,
    ),
    p.graph(
        "Step time, median",
        "Engine step from scheduling to outputs.",
        p.SECONDS,
        Query(_quantile(0.5, "specgate_step_seconds"), _LEGEND),
    ),
]


_GENERATION = f"min by (instance) (specgate_fleet_generation{{{SELECTOR}}})"
_ROW_SWITCHES: list[PanelBuilder] = [
    p.graph(
        "Fleet generation",
        "Number of the last fleet switch that each instance has. All lines are one, but during a"
        " switch.",
        p.COUNT,
        Query(_GENERATION, _LEGEND),
        width=12,
    ),
    p.graph(
        "Generations behind",
        "How many fleet switches an instance has missed. It drafts by an older method.",
        p.COUNT,
        Query(
            f"scalar(max(specgate_fleet_generation{{{SELECTOR}}})) - {_GENERATION}",
            _LEGEND,
        ),
        width=12,
    ),
]


_EVERY = _rate(_REQUESTS, GENERATION)
_BAD = _rate(_REQUESTS, GENERATION + ',status=~"5.."')
_ROW_TROUBLE: list[PanelBuilder] = [
    p.graph(
        "Requests",
        "Generation requests per second by instance.",
        p.REQUESTS_PER_SECOND,
        Query(_EVERY, _LEGEND),
        stacked=True,
    ),
    p.graph(
        "Server errors",
        "Share of an instance's generation requests that got a 5xx.",
        p.SHARE,
        Query(f"({_BAD} or 0 * {_EVERY}) / ({_EVERY} > 0)", _LEGEND),
    ),
    p.graph(
        "Switches and restarts",
        "Requested switches and replaced engines by instance.",
        p.COUNT,
        Query(
            "round(sum by (instance) (increase(specgate_spec_method_switches_total"
            f"{{{SELECTOR}}}[$__rate_interval])))",
            "{{instance}}: switches",
        ),
        Query(
            "round(sum by (instance) (increase(specgate_engine_restarts_total"
            f"{{{SELECTOR}}}[$__rate_interval])))",
            "{{instance}}: restarts",
        ),
        bars=True,
    ),
]


def build() -> Dashboard:
    """The dashboard."""
    return fill(
        frame("fleet", "Fleet", "Every server beside the others, to find the one that differs."),
        (
            ("State", _ROW_STATE),
            ("Switches of the fleet", _ROW_SWITCHES),
            ("Load", _ROW_LOAD),
            ("Speculation", _ROW_SPECULATION),
            ("Requests and events", _ROW_TROUBLE),
        ),
    )

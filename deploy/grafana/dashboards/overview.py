"""The dashboard to look at first: are the service level objectives kept, and where is the time."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.dashboards import panels as p
from deploy.grafana.dashboards.frame import GENERATION, SELECTOR, choice, fill, frame
from deploy.grafana.dashboards.panels import PanelBuilder, Query

ERROR_BUDGET, LATENCY_OBJECTIVE = 0.001, 0.95
"""At most this share of requests fails; at least this share has its first token in time."""

_REQUESTS = "specgate_http_requests_total"
_TTFT = "vllm:time_to_first_token_seconds"
_ITL = "vllm:inter_token_latency_seconds"
_E2E = "vllm:e2e_request_latency_seconds"


def _errors(window: str) -> str:
    """The share of the generation requests that got a 5xx; 0 without an error, none without one."""
    every = f"sum(increase({_REQUESTS}{{{GENERATION}}}[{window}]))"
    bad = f'sum(increase({_REQUESTS}{{{GENERATION},status=~"5.."}}[{window}]))'
    return f"({bad} or 0 * {every}) / ({every} > 0)"


def _quantile(share: float, metric: str, window: str = "$__rate_interval") -> str:
    buckets = f"sum by (le) (rate({metric}_bucket{{{SELECTOR}}}[{window}]))"
    return f"histogram_quantile({share}, {buckets})"


_BUDGET = f"({_errors('$__range')}) / {ERROR_BUDGET}"
_IN_TIME = f'sum(increase({_TTFT}_bucket{{{SELECTOR},le="$ttft"}}[$__range]))'
_BEGUN = f"(sum(increase({_TTFT}_count{{{SELECTOR}}}[$__range])) > 0)"
_GOOD = p.steps((None, p.RED), (0.99, p.ORANGE), (1 - ERROR_BUDGET, p.GREEN))
_EARLY = p.steps((None, p.RED), (0.9, p.ORANGE), (LATENCY_OBJECTIVE, p.GREEN))
_ROW_OBJECTIVES: list[PanelBuilder] = [
    p.tile(
        "Requests without server error",
        "Share of the requests for completions and responses, in the shown time, that got no 5xx."
        " The objective is 99.9 %.",
        p.SHARE,
        Query(f"1 - {_errors('$__range')}", "without error"),
        _GOOD,
    ),
    p.tile(
        "Error budget spent",
        "Errors relative to what the objective of 99.9 % allows in the shown time:"
        " above 1, the objective is missed.",
        p.RATIO,
        Query(_BUDGET, "of the budget"),
        p.steps((None, p.GREEN), (0.5, p.ORANGE), (1, p.RED)),
    ),
    p.tile(
        "First token within $ttft s",
        "Share of the sequences, in the shown time, whose first token came within the chosen"
        " time. The objective is 95 % within 2.5 s.",
        p.SHARE,
        Query(f"{_IN_TIME} / {_BEGUN}", "in time"),
        _EARLY,
    ),
    *[
        p.tile(
            f"{title}, p95",
            f"{text} 95 % of them were faster, in the shown time; interpolated in a bucket.",
            p.SECONDS,
            Query(_quantile(0.95, metric, "$__range"), "p95"),
        )
        for title, text, metric in (
            ("Time to first token", "From arrival to the first token.", _TTFT),
            ("Inter-token latency", "Between two outputs of a sequence.", _ITL),
            ("End to end", "From arrival to the last token of a sequence.", _E2E),
        )
    ],
]


_ACCEPTED = f"sum(increase(specgate_spec_decode_accepted_tokens_total{{{SELECTOR}}}[$__range]))"
_DRAFTED = f"sum(increase(specgate_spec_decode_draft_tokens_total{{{SELECTOR}}}[$__range]))"
_ROW_NOW: list[PanelBuilder] = [
    p.name_tile(
        "Active method",
        "The proposer or policy of requests that name none and match no rule."
        " Several names: the instances differ.",
        Query(
            f"count by (spec_method) (specgate_spec_method_info{{{SELECTOR}}})",
            "{{spec_method}}",
        ),
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
        "Acceptance",
        "Accepted draft tokens relative to verified ones, of all proposers in the shown time.",
        p.SHARE,
        Query(f"{_ACCEPTED} / ({_DRAFTED} > 0)", "accepted"),
    ),
    p.tile(
        "Sequences running",
        "Sequences in the batches of all shown instances, now.",
        p.COUNT,
        Query(f"sum(vllm:num_requests_running{{{SELECTOR}}})", "running"),
    ),
    p.tile(
        "Sequences waiting",
        "Sequences that wait to be scheduled, now.",
        p.COUNT,
        Query(f"sum(vllm:num_requests_waiting{{{SELECTOR}}})", "waiting"),
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
]


_ROW_LATENCY: list[PanelBuilder] = [
    p.heat_map(
        "Time to first token",
        "Sequences by the time from arrival to first token: queue and prompt.",
        _TTFT,
        SELECTOR,
    ),
    p.heat_map(
        "Inter-token latency",
        "Pauses between two outputs of a sequence. Accepted drafts come in one output, so"
        " speculation makes pauses fewer, not shorter.",
        _ITL,
        SELECTOR,
    ),
    p.heat_map(
        "End to end",
        "Sequences by the time from arrival to the last token.",
        _E2E,
        SELECTOR,
    ),
    p.graph(
        "Latency quantiles",
        "p50 and p95 of time to first token and of a whole sequence.",
        p.SECONDS,
        *[
            Query(_quantile(share, metric), f"{name} p{round(100 * share)}")
            for name, metric in (("first token", _TTFT), ("end to end", _E2E))
            for share in (0.5, 0.95)
        ],
    ),
    p.graph(
        "Step time",
        "Median engine step, from scheduling to outputs: a prompt was read (prefill), drafts"
        " were verified (verify), or neither (decode).",
        p.SECONDS,
        Query(
            "histogram_quantile(0.5, sum by (kind, le)"
            f" (rate(specgate_step_seconds_bucket{{{SELECTOR}}}[$__rate_interval])))",
            "{{kind}}",
        ),
    ),
    p.graph(
        "Time in the queue",
        "Mean wait of a sequence until it is scheduled. vLLM's buckets begin at 0.3 s, too wide"
        " for quantiles.",
        p.SECONDS,
        Query(
            f"sum(rate(vllm:request_queue_time_seconds_sum{{{SELECTOR}}}[$__rate_interval]))"
            " / (sum(rate(vllm:request_queue_time_seconds_count"
            f"{{{SELECTOR}}}[$__rate_interval])) > 0)",
            "mean",
        ),
    ),
]


_ROW_LOAD: list[PanelBuilder] = [
    p.graph(
        "Queue",
        "Sequences in the batch, and sequences that wait to be scheduled.",
        p.COUNT,
        Query(f"sum(vllm:num_requests_running{{{SELECTOR}}})", "running"),
        Query(f"sum(vllm:num_requests_waiting{{{SELECTOR}}})", "waiting"),
    ),
    p.graph(
        "KV cache",
        "Share of the KV blocks in use, of the fullest instance and on average."
        " A full cache preempts sequences.",
        p.SHARE,
        Query(f"max(vllm:kv_cache_usage_perc{{{SELECTOR}}})", "fullest"),
        Query(f"avg(vllm:kv_cache_usage_perc{{{SELECTOR}}})", "mean"),
    ),
    p.graph(
        "Prefix cache",
        "Share of prompt tokens found in the prefix cache.",
        p.SHARE,
        Query(
            f"sum(rate(vllm:prefix_cache_hits_total{{{SELECTOR}}}[$__rate_interval]))"
            f" / (sum(rate(vllm:prefix_cache_queries_total{{{SELECTOR}}}[$__rate_interval]))"
            " > 0)",
            "prefix cache hits",
        ),
        highest=1,
    ),
    p.graph(
        "Tokens",
        "Prompt tokens and generated tokens per second.",
        p.TOKENS_PER_SECOND,
        Query(f"sum(rate(vllm:prompt_tokens_total{{{SELECTOR}}}[$__rate_interval]))", "prompt"),
        Query(
            f"sum(rate(vllm:generation_tokens_total{{{SELECTOR}}}[$__rate_interval]))",
            "generated",
        ),
    ),
    p.graph(
        "Preemptions",
        "Sequences per second that lost their KV blocks to others and are computed again.",
        p.REQUESTS_PER_SECOND,
        Query(
            f"sum(rate(vllm:num_preemptions_total{{{SELECTOR}}}[$__rate_interval]))",
            "preempted",
        ),
    ),
    p.graph(
        "Ends of sequences",
        "Sequences per second by the reason of their end.",
        p.REQUESTS_PER_SECOND,
        Query(
            "sum by (finished_reason)"
            f" (rate(vllm:request_success_total{{{SELECTOR}}}[$__rate_interval]))",
            "{{finished_reason}}",
        ),
        stacked=True,
    ),
]


_ROW_HTTP: list[PanelBuilder] = [
    p.graph(
        "Responses by status",
        "Responses of the routes that generate. 499: the client left before its answer.",
        p.REQUESTS_PER_SECOND,
        Query(
            f"sum by (status) (rate({_REQUESTS}{{{GENERATION}}}[$__rate_interval]))",
            "{{status}}",
        ),
        stacked=True,
    ),
    p.graph(
        "Server errors",
        "Share of the generation requests that got a 5xx.",
        p.SHARE,
        Query(_errors("$__rate_interval"), "5xx"),
    ),
    p.graph(
        "Switches and restarts",
        "Requested switches by their outcome, and attempts to replace a dead engine.",
        p.COUNT,
        Query(
            "round(sum by (outcome) (increase(specgate_spec_method_switches_total"
            f"{{{SELECTOR}}}[$__rate_interval])))",
            "switch {{outcome}}",
        ),
        Query(
            "round(sum by (outcome) (increase(specgate_engine_restarts_total"
            f"{{{SELECTOR}}}[$__rate_interval])))",
            "engine {{outcome}}",
        ),
        bars=True,
    ),
]


def build() -> Dashboard:
    """The dashboard."""
    text = "Service level, latency, load and errors of the servers that Prometheus scrapes."
    limits = ("2.5", "0.25", "0.5", "1.0", "5.0", "10.0")
    ttft = choice("ttft", "First token within (s)", "The time of the tile, in seconds", *limits)
    return fill(
        frame("overview", "Overview", text, ttft),
        (
            ("Service level, over the shown time", _ROW_OBJECTIVES),
            ("Now", _ROW_NOW),
            ("Latency", _ROW_LATENCY),
            ("Load", _ROW_LOAD),
            ("Responses and switches", _ROW_HTTP),
        ),
    )

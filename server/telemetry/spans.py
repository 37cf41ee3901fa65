"""The span of one request, with the attributes of OpenTelemetry's conventions for HTTP and GenAI.

The names are those of `opentelemetry-semantic-conventions`, whose module for GenAI has no stable
place to import them from. What the conventions have no name for begins with `specgate.`. No
attribute holds a prompt, an answer or a key.
"""

import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from engine_adapter.policies.names import POLICY_NAMES
from server.telemetry.generation import Failure, Generation

Value = str | int | float | bool | list[str] | list[int]

ADMITTED, FIRST_TOKEN = "specgate.admitted", "specgate.first_token"
"""The events of a span."""

_PROPAGATOR = TraceContextTextMapPropagator()
_PARENT_HEADERS = ("traceparent", "tracestate")


class ServerSpan:
    """The span of one request: from its arrival to the last byte of its response.

    Its parent is the request's `traceparent`; one that is not valid is ignored.

    Args:
        start_s: the request's arrival, by `time.perf_counter`.
        request_id: as in the header `x-request-id`.
    """

    def __init__(self, tracer: Tracer, scope: Scope, start_s: float, request_id: str) -> None:
        # A span's times are Unix times, which can jump: the later ones follow from the first.
        self._start_s, self._start_ns = start_s, time.time_ns()
        self._failure: Failure | None = None
        client = scope.get("client")
        self._span = tracer.start_span(
            f"{scope['method']} {scope['path']}",
            context=_parent(Headers(scope=scope)),
            kind=SpanKind.SERVER,
            start_time=self._start_ns,
            attributes={
                "http.request.method": scope["method"],
                "http.route": scope["path"],
                "url.path": scope["path"],
                "url.scheme": scope["scheme"],
                "specgate.request_id": request_id,
                **({"client.address": client[0]} if client else {}),
            },
        )

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return format_trace_id(self._span.get_span_context().trace_id)

    @property
    def is_valid(self) -> bool:
        """False if the SDK is switched off (`OTEL_SDK_DISABLED`)."""
        return self._span.get_span_context().is_valid

    def generated(self, generation: Generation) -> None:
        """Adds what a generating request did."""
        self._failure = generation.failure
        if not self._span.is_recording():
            return
        self._span.update_name(f"{generation.operation} {generation.model}")
        self._span.set_attributes(generation_attributes(generation))
        timings = generation.timings
        for name, offset_s in (
            (ADMITTED, timings.admitted_s),
            (FIRST_TOKEN, timings.first_token_s),
        ):
            if offset_s is not None:
                self._span.add_event(name, timestamp=self._time_ns(offset_s))

    def annotate(self, **attributes: str | int | float) -> None:
        """Adds attributes; `specgate.` is put before their names."""
        self._span.set_attributes({f"specgate.{key}": value for key, value in attributes.items()})

    def end(self, status: int, error: str | None) -> None:
        """Ends the span. Its status is an error only if the server is to blame, from 500 on.

        Args:
            status: of the response.
            error: the code of an error that is the response.
        """
        failure = self._failure
        self._span.set_attribute("http.response.status_code", status)
        if failure is not None:
            error = failure.code
        elif error is None and status >= 500:
            error = str(status)
        if error is not None:
            self._span.set_attribute("error.type", error)
        if status >= 500 or (failure is not None and failure.status >= 500):
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._time_ns(time.perf_counter() - self._start_s))

    def _time_ns(self, offset_s: float) -> int:
        """Unix time in nanoseconds, so many seconds after the span's begin."""
        return self._start_ns + int(offset_s * 1e9)


def generation_attributes(generation: Generation) -> dict[str, Value]:
    """The attributes of a generating request."""
    sampling, timings = generation.sampling, generation.timings
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": generation.operation,
        "gen_ai.provider.name": "specgate",
        "gen_ai.request.model": generation.model,
        "gen_ai.request.stream": generation.streams,
        "gen_ai.request.choice.count": generation.num_choices,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "specgate.api_key": generation.api_key,
        "specgate.prepare_s": timings.prepared_s,
        "specgate.queue_s": timings.queue_s,
        "specgate.time_to_first_token_s": timings.first_token_s,
    }
    if generation.selected is not None:
        attributes |= _of_answer(generation)
    return {name: value for name, value in attributes.items() if value is not None}


def _of_answer(generation: Generation) -> Mapping[str, Value | None]:
    selected, drafts = generation.selected, generation.drafts
    assert selected is not None
    attributes: dict[str, Value | None] = {
        "gen_ai.response.id": generation.id,
        "gen_ai.response.model": generation.model,
        "gen_ai.response.finish_reasons": list(generation.finish_reasons),
        "gen_ai.usage.input_tokens": generation.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": generation.cached_tokens,
        "gen_ai.usage.output_tokens": generation.generated_tokens,
        "specgate.spec_method": selected.name,
        "specgate.policy": selected.name if selected.name in POLICY_NAMES else None,
        "specgate.num_speculative_tokens": selected.k,
        "specgate.selected_by": selected.selected_by,
        "specgate.rule": selected.rule,
    }
    if drafts is not None:
        drafted, accepted = generation.drafted or 0, generation.accepted or 0
        attributes |= {
            "specgate.draft_tokens": drafted,
            "specgate.accepted_tokens": accepted,
            "specgate.acceptance_rate": accepted / drafted if drafted else None,
            # In the same order.
            "specgate.proposers": list(drafts),
            "specgate.proposers.draft_tokens": [c.drafted for c in drafts.values()],
            "specgate.proposers.accepted_tokens": [c.accepted for c in drafts.values()],
        }
    return attributes


def _parent(headers: Headers) -> Context:
    """The caller's span; empty without a valid `traceparent`, or with two of them."""
    carrier = {name: headers.getlist(name) for name in _PARENT_HEADERS if name in headers}
    if len(carrier.get("traceparent", ())) > 1:
        return Context()
    return _PROPAGATOR.extract(carrier, Context())

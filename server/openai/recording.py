"""Follows a generating request to its end, and tells usage, the slow-request log and the trace.

It costs nothing per token: when the request has ended, it reads what the builder of the response
has kept of each choice.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from engine_adapter.seam.cancellation import was_cancelled
from server.errors import ApiError, ClientDisconnected, cancellation_error, to_api_error
from server.http.exchange import Exchange
from server.openai.choices import ChoiceState
from server.openai.request import AdmittedRequest, PreparedRequest
from server.openai.usage import num_cached_tokens, total_spec
from server.state import Runtime
from server.telemetry.generation import Failure, Generation, Selected, Timings
from server.telemetry.slow_log import log_if_slow


class Recording:
    """A context manager around the whole answer to one prepared request.

    A request without an error whose choices have not all finished was cut off by its client.
    """

    def __init__(
        self, runtime: Runtime, exchange: Exchange, prepared: PreparedRequest, api_key: str | None
    ) -> None:
        self._runtime = runtime
        self._exchange = exchange
        self._prepared = prepared
        self._api_key = api_key
        self._prepared_at = time.perf_counter()
        self._admitted_at: float | None = None
        self._request: AdmittedRequest | None = None
        self._choices: Sequence[ChoiceState] = ()
        self._error: ApiError | None = None

    def __enter__(self) -> Self:
        """The request is prepared."""
        return self

    def admitted(self, request: AdmittedRequest, choices: Sequence[ChoiceState]) -> None:
        """The request goes to the engine; `choices` is filled while it generates."""
        self._admitted_at = time.perf_counter()
        self._request, self._choices = request, choices

    def failing(self, encode: Callable[[ApiError], bytes]) -> Callable[[ApiError], bytes]:
        """`encode`, the end of a stream that fails after it has begun; notes the error."""

        def noted(error: ApiError) -> bytes:
            self._error = error
            return encode(error)

        return noted

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The last byte was sent, or the request ended otherwise."""
        if isinstance(error, asyncio.CancelledError) and was_cancelled():
            self._error = cancellation_error(error)
        elif error is not None:
            self._error = to_api_error(error)
        elif self._error is None and any(c.finish_reason is None for c in self._choices):
            self._error = ClientDisconnected()
        generation = self._generation()
        self._runtime.metrics.usage.count(generation)
        if self._exchange.span is not None:
            self._exchange.span.generated(generation)
        if not self._exchange.is_background:
            log_if_slow(generation, self._runtime.settings.slow_request_s)

    def _generation(self) -> Generation:
        prepared, error, request = self._prepared, self._error, self._request
        return Generation(
            operation=prepared.shape.operation,
            model=prepared.checked.model.name,
            api_key=self._api_key,
            streams=prepared.answer.streams,
            num_choices=prepared.answer.n * len(prepared.prompts),
            sampling=prepared.options[0],
            timings=self._timings(),
            failure=None if error is None else Failure(error.code or error.type, error.status),
            **({} if request is None else self._figures(request)),
        )

    def _figures(self, request: AdmittedRequest) -> dict[str, Any]:
        """What is known of an admitted request."""
        choices, selection, shape = self._choices, request.selection, self._prepared.shape
        has_answer = any(choice.begun_at is not None for choice in choices)
        drafts = total_spec(choices).by_proposer
        # The engine tells it with the last delta, which a request that was cut off does not get.
        knows_drafts = drafts or all(choice.finish_reason is not None for choice in choices)
        return {
            "id": request.id,
            "selected": Selected(
                selection.name, selection.k, selection.selected_by, selection.rule
            ),
            "prompt_tokens": request.num_prompt_tokens if has_answer else 0,
            "cached_tokens": num_cached_tokens(request, choices),
            "generated_tokens": sum(choice.num_tokens for choice in choices),
            "finish_reasons": tuple(
                str(shape.finish_reason(i, choice.finish_reason))
                for i, choice in enumerate(choices)
                if choice.finish_reason is not None
            ),
            "drafts": drafts if knows_drafts else None,
        }

    def _timings(self) -> Timings:
        start, admitted_at = self._exchange.start_s, self._admitted_at
        first_tokens = [choice.begun_at for choice in self._choices if choice.begun_at is not None]
        return Timings(
            prepared_s=self._prepared_at - start,
            admitted_s=None if admitted_at is None else admitted_at - start,
            first_token_s=min(first_tokens) - start if first_tokens else None,
            total_s=time.perf_counter() - start,
        )

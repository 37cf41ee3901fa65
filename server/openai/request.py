"""A request on its way to the engine: its body is checked, then it is prepared, then admitted."""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import Receive

from engine_adapter.policies.names import policy_name
from engine_adapter.seam.media import MediaPrompt
from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import GenerationRequest, SamplingOptions
from server.control.admission.request_cost import request_cost
from server.control.admission.slots import Ticket
from server.control.admission.waiting import check_constraints, wait_for_slot, waiting_limit
from server.control.method_names import PLAIN_SPELLINGS, MethodRequest, SelectionError
from server.control.routing.overlap import RunningOverlap
from server.control.routing.router import NO_ROUTING, Routing
from server.control.routing.rules import Traits
from server.control.switching.selection import Selection, decides_itself, select
from server.errors import InvalidField
from server.http.headers import (
    NUM_SPECULATIVE_TOKENS,
    PROPOSER,
    SPEC_METHOD,
    UNENFORCED_KEYWORDS,
)
from server.openai.body_checks import CheckedBody, header_list
from server.openai.choices import ChoiceShape
from server.openai.prompts import check_echo
from server.schema.generation_body import GenerationBody, SpecDecode
from server.settings import Settings
from server.state import Runtime
from server.time_limits import TimeLimit

_INT64 = 2**63

WHOLE_INTERVAL = 8
"""The fewest tokens of a delta of an answer in one piece: its client reads it at its end.

Of an answer that is cut off, fewer tokens than these are not counted.
"""

MAX_K_DIGITS = 9
"""The most digits of a draft length in a header."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The part of a request that is not in its body.

    Attributes:
        headers: name in lower case -> value.
        api_key: the name of its key, if it needed one.
        is_background: it is a line of a batch.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = None
    is_background: bool = False


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How a client wants its request answered; how the text is sampled is in `SamplingOptions`.

    Attributes:
        method: the proposer and k that it asks for.
        n: choices per prompt.
        streams: as events.
        has_usage: the stream ends with a usage chunk.
        usage_so_far, statistics_so_far: every chunk has them.
        has_token_ids: the answer has the ids of the prompt and of the generated tokens.
        num_prompt_logprobs: alternatives of each prompt token; `None` without log probabilities.
        cache_salt, priority, stream_interval: see `GenerationRequest`.
    """

    method: MethodRequest
    n: int
    streams: bool
    has_usage: bool
    usage_so_far: bool
    statistics_so_far: bool
    has_token_ids: bool
    num_prompt_logprobs: int | None
    cache_salt: str | None
    priority: int
    stream_interval: int


def answer_options(body: GenerationBody, settings: Settings) -> AnswerOptions:
    """Those of a checked body. Raises `InvalidField` for two different proposers."""
    return AnswerOptions(
        method=method_request(body),
        n=body.n or 1,
        streams=bool(body.stream),
        has_usage=body.include_usage,
        usage_so_far=body.continuous_usage,
        statistics_so_far=body.continuous_spec_stats,
        has_token_ids=bool(body.return_token_ids),
        num_prompt_logprobs=body.prompt_logprobs,
        cache_salt=body.cache_salt,
        priority=(body.priority or 0) if settings.has_priorities else 0,
        stream_interval=max(body.stream_interval or 1, 1 if body.stream else WHOLE_INTERVAL),
    )


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that is checked and rendered; its proposer is not selected yet.

    No code after it reads the body.

    Attributes:
        answer: how the client wants it answered.
        id: the response's id; the ids of the engine's requests are `<id>-<index>`.
        prompts: token ids.
        options: one entry per prompt.
        prediction: the token ids that the client expects.
        shape: how the endpoint writes a choice.
        overlap: the retrieval-likeness of the chat's earlier answers, if a rule asks for it.
        template_variables: those that the client has given to the chat template.
        media: the prompt's pictures, recordings and videos, if it has any.
        created: Unix time in seconds.
    """

    answer: AnswerOptions
    checked: CheckedBody
    id: str
    prompts: Sequence[Sequence[int]]
    options: Sequence[SamplingOptions]
    prediction: tuple[int, ...]
    shape: ChoiceShape
    overlap: float | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    media: MediaPrompt | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def headers(self) -> dict[str, str]:
        """The headers that say what of the body is not honoured."""
        headers = self.checked.headers()
        constraint = self.options[0].structured_output
        if constraint is not None and constraint.unenforced:
            headers[UNENFORCED_KEYWORDS] = header_list(constraint.unenforced, ":-")
        return headers

    def traits(self, origin: Origin) -> Traits:
        """What routing rules match of the request."""
        sampling = self.options[0]
        return Traits(
            model=self.checked.model.name,
            headers=origin.headers,
            api_key=origin.api_key,
            prompt_tokens=max(map(len, self.prompts)),
            temperature=sampling.temperature,
            structured=sampling.structured_output is not None,
            overlap=self.overlap,
        )


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that has its proposer and is in flight.

    Attributes:
        selection: the proposer that the request has, and why.
        engine_requests: one per choice; choice i of prompt p has the index p * n + i.
        ticket: has started the first of them.
        num_prompt_tokens: the tokens of all prompts, each prompt counted once.
        measured: gets the overlap of the answers, for routing rules.
    """

    prepared: PreparedRequest
    selection: Selection
    engine_requests: tuple[GenerationRequest, ...]
    ticket: Ticket
    num_prompt_tokens: int
    measured: tuple[RunningOverlap, ...] = ()

    @property
    def id(self) -> str:
        """The response's id."""
        return self.prepared.id

    @property
    def created(self) -> int:
        """When the response was asked for: Unix time in seconds."""
        return self.prepared.created

    def headers(self) -> dict[str, str]:
        """The response's own headers."""
        return {SPEC_METHOD: self.selection.name, **self.prepared.headers()}


def new_request_id(prefix: str) -> str:
    """A new id of a response."""
    return f"{prefix}{uuid.uuid4().hex}"


def _ignore() -> None:
    """Does nothing."""


@asynccontextmanager
async def admitted(
    runtime: Runtime,
    receive: Receive,
    prepared: PreparedRequest,
    origin: Origin,
    limit: TimeLimit | None = None,
    on_queued: Callable[[], None] = _ignore,
) -> AsyncIterator[AdmittedRequest]:
    """Selects a request's spec method and admits it; it is in flight until the block ends.

    Its constraints are checked first. While the engine has no free slot, or a drain runs, the
    request then waits for a slot, after `on_queued` was called. `receive` must be past the
    request's body, and `limit` is that of the request.

    Raises:
        InvalidField: the answer would be too large, or the requested proposer or k cannot be
            selected.
        InvalidRequest, EngineError: the engine refuses a constraint.
        QueueFull: the queue is full.
        CancelledError: for another request; `QueueFull` is its reason.
        QueueTimeout, or the limit's error: the request waited too long, its check included.
        ClientDisconnected: the client closed the connection while the request waited.
    """
    answer = prepared.answer
    if not answer.streams:
        echoes = prepared.shape.echoes_prompt
        check_echo(prepared.prompts, answer.n, prepared.options[0], echoes=echoes)
    cost = request_cost(
        *(origin.api_key, prepared.prompts, answer.n, prepared.options[0], answer.priority),
        is_background=origin.is_background,
    )
    adapter_used = runtime.lora_admin.used(prepared.checked.model.adapter)
    waiting = TimeLimit.earliest(waiting_limit(runtime, cost), limit)
    waited_s = 0.0
    with runtime.admission.ticket(cost) as ticket, adapter_used:
        of_prompts = (options.structured_output for options in prepared.options)
        if constraints := {constraint for constraint in of_prompts if constraint is not None}:
            choose(runtime, prepared, origin)
            waited_s = await check_constraints(runtime, receive, constraints, ticket, waiting)
        if ticket.start_now():
            runtime.admission.observe_wait(cost, waited_s)
        else:
            # A request that is invalid, or too many, is refused before the wait.
            choose(runtime, prepared, origin)
            runtime.admission.make_room(cost)
            on_queued()
            await wait_for_slot(runtime, receive, ticket, waiting, waited_s)
        # No `await` from here on: no drain may come in between.
        request = _admit(runtime, prepared, origin, ticket)
        selection = request.selection
        with runtime.switcher.in_flight.track(selection.name, pinned=selection.params.pinned):
            yield request


def _admit(
    runtime: Runtime, prepared: PreparedRequest, origin: Origin, ticket: Ticket
) -> AdmittedRequest:
    selection, routing = choose(runtime, prepared, origin)
    answer, n = prepared.answer, prepared.answer.n
    params = replace(
        selection.params,
        prediction=prepared.prediction,
        streams_stats=answer.statistics_so_far,
    )
    adapter = prepared.checked.model.adapter
    engine_requests = tuple(
        GenerationRequest(
            f"{prepared.id}-{p * n + i}",
            prompt,
            _own_seed(i, options),
            params,
            adapter,
            template_variables=prepared.template_variables,
            cache_salt=answer.cache_salt,
            priority=answer.priority,
            media=prepared.media,
            stream_interval=answer.stream_interval,
        )
        for p, (prompt, options) in enumerate(
            zip(map(tuple, prepared.prompts), prepared.options, strict=True)
        )
        for i in range(n)
    )
    runtime.metrics.count_request(selection.name, selection.selected_by)
    runtime.router.record(routing, selection.rule)
    return AdmittedRequest(
        prepared=prepared,
        selection=selection,
        engine_requests=engine_requests,
        ticket=ticket,
        num_prompt_tokens=sum(map(len, prepared.prompts)),
        measured=routing.measured,
    )


def choose(
    runtime: Runtime, prepared: PreparedRequest, origin: Origin
) -> tuple[Selection, Routing]:
    """The spec method that a request would get now. Counts nothing. Raises `InvalidField`."""
    router, routing = runtime.router, NO_ROUTING
    method = complete_method(
        prepared.answer.method, origin.headers, prepared.checked.model.proposer
    )
    if router.rules and (router.uses_overlap or not decides_itself(method)):
        routing = router.route(prepared.traits(origin))
    if decides_itself(method):
        routing = replace(routing, method=None, skipped=())
    try:
        selection = select(
            method, runtime.switcher.active, runtime.loaded_proposers(), routing.method
        )
    except SelectionError as error:
        raise InvalidField(error.param, error.message, error.code) from error
    return selection, routing


def _own_seed(index: int, options: SamplingOptions) -> SamplingOptions:
    """The options of a prompt's choice `index`: with one seed for all, all would be equal."""
    if options.seed is None or not index:
        return options
    seed = (options.seed + index + _INT64) % (2 * _INT64) - _INT64
    return replace(options, seed=seed)


def method_request(body: GenerationBody) -> MethodRequest:
    """The proposer and k that a body requests, from `spec_decode` or from the flat fields.

    A flat null means "not set", because clients send their unset fields as null. Raises
    `InvalidField` if both forms are used with different values.
    """
    nested = body.spec_decode or SpecDecode()
    in_nested = "proposer" in nested.model_fields_set
    flat = body.speculative_model
    if in_nested and flat is not None and _canonical(nested.proposer) != _canonical(flat):
        raise _conflict("speculative_model", "spec_decode.proposer")
    k, flat_k = nested.num_speculative_tokens, body.num_speculative_tokens
    if k is not None and flat_k is not None and k != flat_k:
        raise _conflict("num_speculative_tokens", "spec_decode.num_speculative_tokens")
    proposer_is_flat = flat is not None and not in_nested
    k_is_flat = flat_k is not None and k is None
    return MethodRequest(
        proposer=nested.proposer if in_nested else flat,
        num_speculative_tokens=flat_k if k_is_flat else k,
        is_named=in_nested or flat is not None,
        has_prediction=body.prediction is not None,
        proposer_param="speculative_model" if proposer_is_flat else "spec_decode.proposer",
        k_param=("" if k_is_flat else "spec_decode.") + "num_speculative_tokens",
    )


def _canonical(name: str | None) -> str | None:
    """The name, or `None` for every name of plain decoding; a policy's own name."""
    if name is None or name.lower() in PLAIN_SPELLINGS:
        return None
    return policy_name(name) or name


def _conflict(flat: str, nested: str) -> InvalidField:
    return InvalidField(flat, f"{flat} and {nested} are both given and differ; send one of them.")


def complete_method(
    method: MethodRequest, headers: Mapping[str, str], model_proposer: str | None
) -> MethodRequest:
    """The method with what the body does not have: from the headers, else from the model's name.

    Args:
        headers: name in lower case -> value.
        model_proposer: see `ServedModel`.

    Raises:
        InvalidField: the header of k is not an integer.
    """
    if not method.is_named and (name := headers.get(PROPOSER)) is not None:
        method = replace(method, proposer=name, is_named=True, proposer_param=PROPOSER)
    elif not method.is_named and model_proposer is not None:
        method = replace(method, proposer=model_proposer, is_named=True, proposer_param="model")
    k = headers.get(NUM_SPECULATIVE_TOKENS)
    if k is None or method.num_speculative_tokens is not None:
        return method
    if not (k.isascii() and k.isdigit() and len(k) <= MAX_K_DIGITS):
        message = f"{NUM_SPECULATIVE_TOKENS} must be an integer from 0 on, not {short_repr(k)}."
        raise InvalidField(NUM_SPECULATIVE_TOKENS, message)
    return replace(method, num_speculative_tokens=int(k), k_param=NUM_SPECULATIVE_TOKENS)

"""What must hold before the engine sees a request, and what the request then is."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from engine_adapter.types import EngineInfo, GenerationRequest, LoraAdapter, SamplingOptions
from server.control.selection import Choice, SelectionError, select
from server.errors import InvalidField, clip
from server.openai.models import find_adapter
from server.schema.base import Body
from server.schema.generation_body import GenerationBody
from server.state import State

MAX_IGNORED_CHARS = 1024
"""The most that the list of ignored fields takes in a header."""

_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Accepted:
    """A body of which every field is honoured, or is known to be ignored.

    Attributes:
        model: the served name that the response repeats.
        ignored: unknown fields of the body.
        adapter: the LoRA adapter of that name.
    """

    model: str
    ignored: tuple[str, ...]
    adapter: LoraAdapter | None = None

    def headers(self) -> dict[str, str]:
        """`x-specgate-ignored-fields`, where there are such."""
        return {"x-specgate-ignored-fields": _header_list(self.ignored)} if self.ignored else {}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is checked and rendered, and whose proposer is not chosen yet.

    Attributes:
        prefix: what the job's id begins with.
        prompts: token ids.
        options: one entry per prompt.
        prediction: the token ids that the client expects.
    """

    body: GenerationBody
    accepted: Accepted
    prefix: str
    prompts: Sequence[Sequence[int]]
    options: Sequence[SamplingOptions]
    prediction: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """Choices per prompt."""
        return self.body.n or 1

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class Job:
    """An admitted request.

    Attributes:
        id: of the response; the engine's requests are `<id>-<index>`.
        created: Unix time in seconds.
        requests: one per choice; choice i of prompt p is number p * n + i.
        prompt_tokens: of all prompts, each counted once.
        n: choices per prompt.
        predicts: the client sent a prediction.
    """

    id: str
    created: int
    accepted: Accepted
    requests: tuple[GenerationRequest, ...]
    prompt_tokens: int
    n: int
    choice: Choice
    predicts: bool = False

    def headers(self) -> dict[str, str]:
        """What the response says of the request in headers."""
        return {"x-specgate-spec-method": self.choice.name, **self.accepted.headers()}


def accept(state: State, body: Body) -> Accepted:
    """What can be checked before anything is rendered. Raises `NotFound`, `InvalidField`."""
    name = body.model
    if name is None:
        name = state.settings.served_model_name[0]
    adapter = find_adapter(state, name)
    if isinstance(body, GenerationBody):
        body.check_stream_options()
    ignored = body.ignored_fields(strict=state.settings.strict_fields)
    return Accepted(name, ignored, adapter)


def choose(state: State, body: GenerationBody) -> Choice:
    """Who drafts for the request. Raises `InvalidField`."""
    try:
        return select(body.asked(), state.switcher.active, state.catalog)
    except SelectionError as error:
        raise InvalidField(error.param, error.message, error.code) from error


def admit(state: State, prepared: Prepared) -> Job:
    """Chooses who drafts for a request and makes a job of it. Raises `InvalidField`."""
    choice = choose(state, prepared.body)
    job_id = f"{prepared.prefix}-{uuid.uuid4().hex}"
    n = prepared.n
    params = replace(choice.params, prediction=prepared.prediction)
    adapter = prepared.accepted.adapter
    requests = tuple(
        GenerationRequest(
            f"{job_id}-{p * n + i}", tuple(prompt), _of_choice(i, options), params, adapter
        )
        for p, (prompt, options) in enumerate(zip(prepared.prompts, prepared.options, strict=True))
        for i in range(n)
    )
    job = Job(
        id=job_id,
        created=int(time.time()),
        accepted=prepared.accepted,
        requests=requests,
        prompt_tokens=sum(map(len, prepared.prompts)),
        n=n,
        choice=choice,
        predicts=prepared.body.prediction is not None,
    )
    state.metrics.count_request(choice.name, choice.selected_by)
    return job


def check_prompt(info: EngineInfo, token_ids: Sequence[int], param: str) -> None:
    """Raises `InvalidField` for a prompt that the engine could not read."""
    if not token_ids:
        raise InvalidField(param, f"{param} has no tokens.")
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < info.vocab_size:
            bounds = f"token ids are from 0 to {info.vocab_size - 1}"
            raise InvalidField(param, f"{param} holds {clip(token_id)}; {bounds}.")
    if len(token_ids) >= info.max_model_len:
        message = (
            f"This model's maximum context length is {info.max_model_len} tokens, and {param} "
            f"has {len(token_ids)}: no room is left to generate."
        )
        raise InvalidField(param, message, "context_length_exceeded")


def check_max_tokens(info: EngineInfo, prompt_tokens: int, max_tokens: int, param: str) -> None:
    """Raises `InvalidField` where prompt and generation together exceed the context."""
    room = info.max_model_len - prompt_tokens
    if max_tokens > room:
        message = (
            f"This model's maximum context length is {info.max_model_len} tokens; the prompt has "
            f"{prompt_tokens}, so {param} can be at most {room}, not {clip(max_tokens)}."
        )
        raise InvalidField(param, message, "context_length_exceeded")


def _of_choice(index: int, options: SamplingOptions) -> SamplingOptions:
    """Choice `index` of a prompt: a seeded one has its own seed, or all would be equal."""
    if options.seed is None or not index:
        return options
    seed = (options.seed + index + _INT64) % (2 * _INT64) - _INT64
    return replace(options, seed=seed)


def _header_list(names: Sequence[str]) -> str:
    """Names as a header can hold them: percent-encoded, and cut where there are too many."""
    text = ", ".join(quote(name[:64], safe="", errors="replace") for name in names)
    return text if len(text) <= MAX_IGNORED_CHARS else text[: MAX_IGNORED_CHARS - 3] + "..."

"""Checks of a body that need no tokenizer, and how headers report their result."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from engine_adapter.seam.text import truncate
from engine_adapter.seam.types import StructuredOutput
from server.errors import InvalidField
from server.http.headers import IGNORED_FIELDS
from server.openai.chat_input import ChatPrompt
from server.openai.models import ServedModel, find_model
from server.schema.base import Body, without_effect
from server.schema.chat import ReasoningEffort
from server.schema.generation_body import MAX_PROMPTS, GenerationBody
from server.settings import Settings
from server.state import Runtime

MAX_LIST_CHARS = 1024
"""The maximum length of a header that lists fields or keywords."""


@dataclass(frozen=True, slots=True)
class CheckedBody:
    """A body of which every field is either honoured or ignored with notice.

    Attributes:
        model_name: as the client wrote it; the response repeats it.
        model: what that name stands for.
        ignored: unknown fields of the body.
    """

    model_name: str
    model: ServedModel
    ignored: tuple[str, ...]

    def headers(self) -> dict[str, str]:
        """`x-specgate-ignored-fields`, if fields were ignored."""
        return {IGNORED_FIELDS: header_list(self.ignored)} if self.ignored else {}


def check_body(runtime: Runtime, body: Body) -> CheckedBody:
    """Checks the model's name and unknown fields. Raises `NotFound`, `InvalidField`."""
    name = runtime.settings.served_model_name[0] if body.model is None else body.model
    model = find_model(runtime, name)
    ignored = body.ignored_fields(strict=runtime.settings.strict_fields)
    return CheckedBody(name, model, ignored)


def check_choices(num_prompts: int, body: GenerationBody) -> None:
    """Raises `InvalidField` for too many choices of all prompts together."""
    if (choices := num_prompts * (body.n or 1)) > MAX_PROMPTS:
        message = f"The number of prompts times n can be at most {MAX_PROMPTS}, not {choices}."
        raise InvalidField("n", message)


def check_generation_body(runtime: Runtime, body: GenerationBody) -> CheckedBody:
    """The same, and checks what the settings exclude, and what streams exclude."""
    checked = check_body(runtime, body)
    body.check_stream_options()
    if body.priority and not runtime.settings.has_priorities:
        if runtime.settings.strict_fields:
            message = "priority needs a server that was started with --scheduling-policy priority."
            raise InvalidField("priority", message, "unsupported_parameter")
        return replace(checked, ignored=(*checked.ignored, "priority"))
    return checked


def check_not_of_chats(body: Body, path: str) -> None:
    """Raises `InvalidField` for a field that a chat has and the endpoint `path` does not."""
    for name, value in (body.model_extra or {}).items():
        if name in body.of_other_routes and value is not None:
            message = f"{name} is a field of /v1/chat/completions; {path} does not have it."
            raise InvalidField(name, message, "unsupported_parameter")


def check_enforced(settings: Settings, constraint: StructuredOutput | None) -> None:
    """Raises `InvalidField` for keywords that are left out, with `--strict-fields`."""
    if settings.strict_fields and constraint is not None and constraint.unenforced:
        names = truncate(", ".join(constraint.unenforced))
        message = f"{constraint.param} has keywords that cannot be enforced: {names}."
        raise InvalidField(constraint.param, message)


def unmet_effort(
    runtime: Runtime, effort: ReasoningEffort | None, param: str, template: str | None = None
) -> tuple[str, ...]:
    """The field of an effort of reasoning that the chat template, or `template`, does not read.

    Raises `InvalidField` then, with `--strict-fields`.
    """
    reads = runtime.renderer.mentions
    if effort in (None, "none"):
        return ()
    if reads("reasoning_effort", "enable_thinking", template=template):
        return ()
    if runtime.settings.strict_fields:
        raise without_effect(param)
    return (param,)


def unmet_documents(runtime: Runtime, chat: ChatPrompt) -> tuple[str, ...]:
    """The field of documents that the chat template does not show.

    Raises `InvalidField` then, with `--strict-fields`.
    """
    if not chat.documents or runtime.renderer.mentions("documents", template=chat.template):
        return ()
    if runtime.settings.strict_fields:
        raise without_effect("documents")
    return ("documents",)


def header_list(names: Sequence[str], safe: str = "") -> str:
    """The names as a header can carry them: percent-encoded, and cut to a maximum length."""
    text = ", ".join(quote(name[:64], safe=safe, errors="replace") for name in names)
    return text if len(text) <= MAX_LIST_CHARS else text[: MAX_LIST_CHARS - 3] + "..."

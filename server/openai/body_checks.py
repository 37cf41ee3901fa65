"""Checks of a body that need no tokenizer, and how headers report their result."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from engine_adapter.seam.text import cut
from engine_adapter.seam.types import LoraAdapter
from server.errors import InvalidField
from server.http.headers import IGNORED_FIELDS
from server.openai.models import find_adapter
from server.rendering import Renderer
from server.schema.base import Body, refused_when_strict
from server.schema.generation_body import GenerationBody
from server.settings import Settings
from server.state import Runtime

MAX_LIST_CHARS = 1024
"""The maximum length of a header that lists fields or keywords."""


@dataclass(frozen=True, slots=True)
class CheckedBody:
    """A body of which every field is either honoured or ignored with notice.

    Attributes:
        model: the served name, which the response repeats.
        ignored: unknown fields of the body.
        adapter: the LoRA adapter of that name; `None` is the target itself.
    """

    model: str
    ignored: tuple[str, ...]
    adapter: LoraAdapter | None = None

    def headers(self) -> dict[str, str]:
        """`x-specgate-ignored-fields`, if fields were ignored."""
        return {IGNORED_FIELDS: header_list(self.ignored)} if self.ignored else {}


def check_body(runtime: Runtime, body: Body) -> CheckedBody:
    """Checks what needs no tokenizer. Raises `NotFound`, `InvalidField`."""
    name = runtime.settings.served_model_name[0] if body.model is None else body.model
    adapter = find_adapter(runtime, name)
    strict = runtime.settings.strict_fields
    ignored = body.ignored_fields(strict=strict)
    if isinstance(body, GenerationBody):
        check_generation(runtime.settings, body)
    ignored += ignored_effort(runtime.renderer, body, strict=strict)
    return CheckedBody(name, ignored, adapter)


def check_generation(settings: Settings, body: GenerationBody) -> None:
    """Raises `InvalidField` for what the settings exclude, and for contradictory streaming."""
    body.check_stream_options()
    if body.priority and settings.scheduling_policy != "priority":
        message = "priority needs a server that was started with --scheduling-policy priority."
        raise InvalidField("priority", message, "unsupported_parameter")
    constraint = body.structured_output() if settings.strict_fields else None
    if constraint is not None and constraint.unenforced:
        names = cut(", ".join(constraint.unenforced))
        message = f"{constraint.param} has keywords that cannot be enforced: {names}."
        raise InvalidField(constraint.param, message)


def ignored_effort(renderer: Renderer, body: Body, *, strict: bool) -> tuple[str, ...]:
    """`reasoning_effort`, if it asks for reasoning and the chat template does not know it.

    Raises `InvalidField` then, with `strict`.
    """
    declared = "reasoning_effort" in type(body).model_fields
    effort = getattr(body, "reasoning_effort", None) if declared else None
    if effort in (None, "none") or renderer.mentions("reasoning_effort", "enable_thinking"):
        return ()
    if strict:
        raise refused_when_strict("reasoning_effort")
    return ("reasoning_effort",)


def header_list(names: Sequence[str], safe: str = "") -> str:
    """The names as a header can carry them: percent-encoded, and cut to a maximum length."""
    text = ", ".join(quote(name[:64], safe=safe, errors="replace") for name in names)
    return text if len(text) <= MAX_LIST_CHARS else text[: MAX_LIST_CHARS - 3] + "..."

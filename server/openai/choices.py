"""One choice of a response: what the engine has sent for it, and how an endpoint writes it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_adapter.seam.counts import SpecStats
from engine_adapter.seam.types import Delta, FinishReason, TokenLogprob


@dataclass(slots=True)
class ChoiceState:
    """What the engine has sent for one choice so far.

    Attributes:
        keep_text: keep text, token ids and log probabilities, for a response in one piece; a
            stream does not need them again.
        num_tokens: generated tokens.
        begun_at: when the first delta arrived, by `time.perf_counter`; `None` before.
        spec: the statistics of the choice's speculation so far.
    """

    keep_text: bool
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    num_tokens: int = 0
    num_cached_tokens: int = 0
    begun_at: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    spec: SpecStats = field(default_factory=SpecStats)

    def add(self, delta: Delta) -> None:
        """Adds what the engine has sent."""
        if self.begun_at is None:
            self.begun_at = time.perf_counter()
        self.num_tokens += len(delta.token_ids)
        if delta.num_cached_tokens:
            self.num_cached_tokens = delta.num_cached_tokens
        if delta.spec is not None:
            self.spec = delta.spec
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason
        if self.keep_text:
            self.texts.append(delta.text)
            self.token_ids.extend(delta.token_ids)
            self.logprobs.extend(delta.logprobs or ())
            self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs

    def reason_of_end(self, request_id: str) -> FinishReason:
        """Why it has ended; never made up. Raises `RuntimeError` if the engine has not said it."""
        if self.finish_reason is None:
            raise RuntimeError(f"{request_id}: a sequence ended without a finish_reason")
        return self.finish_reason

    @property
    def text(self) -> str:
        """The whole text, with `keep_text`."""
        return "".join(self.texts)


class ChoiceShape(ABC):
    """How an endpoint writes the choices of one response.

    Attributes:
        operation: what the model does, as OpenTelemetry names it.
        object_type, chunk_object_type: the `object` of a whole response and of a chunk.
        echoes_prompt: every choice begins with its prompt.
        is_plain: the text of a delta is the text of its chunk; earlier deltas do not matter.
        has_prompts: a choice shows its prompt's token ids; otherwise the response does, once.
    """

    operation: str
    object_type: str
    chunk_object_type: str
    echoes_prompt = False
    is_plain = True
    has_prompts = False

    def visible(self, delta: Delta) -> Delta:
        """The part of a delta that the client sees."""
        return delta

    def head_fields(self, response_id: str) -> dict[str, Any]:
        """Fields of the response, and of each chunk, besides those of all endpoints."""
        return {}

    def role_chunk(self, index: int) -> dict[str, Any] | None:
        """The choice of the chunk that precedes a choice's text, if the endpoint sends one."""
        return None

    @abstractmethod
    def chunk_choices(self, index: int, delta: Delta, *, echo: bool) -> Sequence[dict[str, Any]]:
        """The choices of the chunks for a delta; with `echo` the first begins with the prompt.

        There is at least one for the last delta: the last of them gets the finish reason.
        """

    def encoded_logprobs(self, delta: Delta) -> bytes | None:
        """The log probabilities of a delta as entries of a whole choice's; `None`: it has none.

        They are encoded when they come: all of a choice at its end would make others wait.
        """
        return None

    @abstractmethod
    def whole_choice(self, index: int, state: ChoiceState) -> dict[str, Any]:
        """The choice of a response in one piece."""

    def finish_reason(self, index: int, reason: FinishReason | None) -> str | None:
        """The finish reason of choice `index`, in OpenAI's terms."""
        return reason

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Generated tokens that are reasoning, of all choices; `None` if it is not told apart."""
        return None

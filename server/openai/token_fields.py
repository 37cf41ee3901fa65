"""What a response shows of tokens besides its text, as vLLM does.

`return_token_ids` adds the ids of the prompt and of the generated tokens, `prompt_logprobs` the log
probabilities of the prompt's tokens. A chat has the prompt's once; a completion, and a
batch of chats, in each choice.
"""

from collections.abc import Sequence
from typing import Any

from engine_adapter.seam.types import Delta, TokenLogprob
from server.openai.choices import ChoiceState
from server.openai.logprobs import LEAST_LOGPROB
from server.openai.request import PreparedRequest


class TokenFields:
    """The fields of one response. Each is left out if the request does not ask for it.

    Attributes:
        returns_ids: every chunk of a stream needs the ids of its tokens.
    """

    def __init__(self, prepared: PreparedRequest) -> None:
        answer = prepared.answer
        self.returns_ids = answer.has_token_ids
        self._num_prompt_logprobs = answer.num_prompt_logprobs
        self._prompts = prepared.prompts
        self._n = answer.n
        self._in_choice = prepared.shape.has_prompts
        self._held: dict[int, list[int]] = {}
        self._opened: set[int] = set()

    def of_body(self, choices: Sequence[ChoiceState]) -> dict[str, Any]:
        """The fields of a whole chat beside its choices."""
        return {} if self._in_choice else self._of_prompt(0, choices[0])

    def of_choice(self, index: int, choice: ChoiceState) -> dict[str, Any]:
        """The fields of a whole choice."""
        fields = self._of_prompt(index, choice) if self._in_choice else {}
        return fields | {"token_ids": choice.token_ids} if self.returns_ids else fields

    def of_first_chunk(self) -> dict[str, Any]:
        """The fields of the chunk that opens a choice of a chat."""
        shows_prompt = self.returns_ids and not self._in_choice
        return {"prompt_token_ids": list(self._prompts[0])} if shows_prompt else {}

    def hold(self, index: int, delta: Delta) -> None:
        """Keeps the ids of a delta for the next chunk of choice `index`."""
        if self.returns_ids:
            self._held.setdefault(index, []).extend(delta.token_ids)

    def attach(self, index: int, choices: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The choices of a delta's chunks; the first one gets the ids that were held."""
        if not self.returns_ids or not choices:
            return choices
        first_choice, *more_choices = choices
        first_choice = first_choice | {"token_ids": self._held.pop(index, [])}
        if self._in_choice and index not in self._opened:
            first_choice["prompt_token_ids"] = list(self._prompts[index // self._n])
        self._opened.add(index)
        return first_choice, *more_choices

    def _of_prompt(self, index: int, choice: ChoiceState) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.returns_ids:
            fields["prompt_token_ids"] = list(self._prompts[index // self._n])
        if self._num_prompt_logprobs is not None:
            tokens = choice.prompt_logprobs or ()
            fields["prompt_logprobs"] = [self._candidates(token) for token in tokens]
        return fields

    def _candidates(self, token: TokenLogprob | None) -> dict[str, Any] | None:
        """The requested alternatives of one token, and the token itself, by id."""
        if token is None:
            return None
        candidates = (*token.top[: self._num_prompt_logprobs], token.actual)
        return {
            str(candidate.token_id): {
                "logprob": max(candidate.logprob, LEAST_LOGPROB),
                "rank": candidate.rank,
                "decoded_token": candidate.token,
            }
            for candidate in candidates
        }

"""Turns the tokens of a sequence into text, one at a time, and finds stop strings."""

from typing import Any

from tokenizers.decoders import DecodeStream

from engine_adapter.seam.types import SamplingOptions


class Detokenizer:
    """The text of one sequence.

    A character appears with its last byte. Text that may be the beginning of a stop string is
    withheld until it is clear that it is not.
    """

    def __init__(
        self, tokenizer: Any, prompt_token_ids: tuple[int, ...], sampling: SamplingOptions
    ) -> None:
        """`tokenizer`: a `tokenizers.Tokenizer`; the prompt decides on a leading space."""
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._stream = DecodeStream(
            ids=list(prompt_token_ids), skip_special_tokens=sampling.skip_special_tokens
        )
        self._text = ""
        self._num_shown = 0
        # As in vLLM: without spaces, an added token after another one is what it is written as.
        self._added: dict[int, str] = {}
        if not (sampling.skip_special_tokens or sampling.spaces_between_special_tokens):
            added_tokens = tokenizer.get_added_tokens_decoder()
            self._added = {token_id: token.content for token_id, token in added_tokens.items()}
        self._follows_added = False

    def add(self, token_id: int, *, may_stop: bool) -> str | None:
        """Appends a token. Returns the stop string that it completed, if `may_stop`."""
        start = len(self._text)
        text = self._stream.step(self._tokenizer, token_id) or ""
        is_added = token_id in self._added
        self._text += self._added[token_id] if is_added and self._follows_added else text
        self._follows_added = is_added
        if not may_stop or len(self._text) == start:
            return None
        return self._match(start)

    def take(self, *, finished: bool) -> str:
        """The new text since the last call, without text that a stop string may still remove."""
        withheld = 0 if finished else self._num_withheld()
        end = max(len(self._text) - withheld, self._num_shown)
        text = self._text[self._num_shown : end]
        self._num_shown = end
        return text

    def _match(self, start: int) -> str | None:
        """Cuts the text at the stop string that ends first in [before, end)."""
        match: tuple[int, str] | None = None
        for stop in self._sampling.stop:
            position = self._text.find(stop, max(0, start - len(stop) + 1))
            if position >= 0 and (match is None or position + len(stop) < match[0]):
                match = (position + len(stop), stop)
        if match is None:
            return None
        end, stop = match
        self._text = self._text[
            : end if self._sampling.include_stop_str_in_output else end - len(stop)
        ]
        return stop

    def _num_withheld(self) -> int:
        if self._sampling.include_stop_str_in_output:
            return 0
        return max(
            (
                n
                for stop in self._sampling.stop
                for n in range(1, min(len(stop), len(self._text) + 1))
                if self._text.endswith(stop[:n])
            ),
            default=0,
        )

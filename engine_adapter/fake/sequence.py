"""One sequence: its tokens, why it ends, and the deltas that its reader takes."""

import asyncio
from dataclasses import dataclass

from engine_adapter.fake.detokenizer import Detokenizer
from engine_adapter.fake.tally import SpecTally
from engine_adapter.fake.tokens import TokenSource, text_key, token_logprob
from engine_adapter.fake.vocabulary import Vocabulary
from engine_adapter.types import Delta, FinishReason, GenerationRequest, SpecMethod, TokenLogprob


@dataclass(slots=True)
class Times:
    """When things happened to a sequence, in seconds of one clock."""

    arrived_s: float
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Verified:
    """What became of a row's drafts: how many were kept, how many tokens were emitted."""

    kept: int
    emitted: int


class Sequence:
    """A live request.

    Attributes:
        method: what drafts for it; a switch may change it.
        outbox: the deltas; an exception ends the sequence.
        spec: its statistics.
        num_cached_tokens: prompt tokens found in the prefix cache, known at admission.
        trouble: `fail` or `hang` if a fault option met its prompt, else empty.
    """

    def __init__(
        self,
        request: GenerationRequest,
        vocabulary: Vocabulary,
        *,
        spec_method: SpecMethod,
        seed: int | None,
        length: int,
        max_model_len: int,
        now_s: float,
    ) -> None:
        """`seed` is what the text depends on beside the prompt: `None` at temperature 0."""
        self.request = request
        self.spec_method = spec_method
        self.outbox: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self.spec = SpecTally()
        self.times = Times(now_s)
        self.num_cached_tokens = 0
        self.trouble = ""
        adapter = request.lora_adapter.name if request.lora_adapter else ""
        self.key = text_key(request.prompt_token_ids, seed, adapter)
        self.num_output_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._vocabulary = vocabulary
        self._source = TokenSource(vocabulary, self.key, length)
        self._text = Detokenizer(vocabulary.tokenizer, request.prompt_token_ids, request.sampling)
        room = max_model_len - len(request.prompt_token_ids)
        self._max_tokens = min(request.sampling.max_tokens or room, room)
        self._ends = _end_tokens(request, vocabulary)

    @property
    def prefilled(self) -> bool:
        """Whether the prompt has been read: the first token is there."""
        return self.num_output_tokens > 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.request.prompt_token_ids) + self.num_output_tokens

    @property
    def draft_room(self) -> int:
        """The most draft tokens that can still be kept."""
        return self._max_tokens - self.num_output_tokens - 1

    def advance(self, proposer: str, drafted: int, accepted: int, now_s: float) -> Verified:
        """Emits the accepted drafts and one token more, up to the end, as one delta."""
        first = not self.prefilled
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        while len(tokens) <= accepted and self.finish_reason is None:
            token = self._append()
            tokens.append(token)
            if (count := self.request.sampling.logprobs) is not None:
                logprobs.append(self._logprob(self.num_output_tokens - 1, token, count))
        verified = Verified(min(accepted, len(tokens)), len(tokens))
        if not first:
            self.spec.add(proposer, drafted, verified.kept, verified.emitted)
        self._note_time(first, now_s)
        self.outbox.put_nowait(
            Delta(
                text=self._text.take(finished=self.finish_reason is not None),
                token_ids=tuple(tokens),
                logprobs=None if self.request.sampling.logprobs is None else tuple(logprobs),
                prompt_logprobs=self._prompt_logprobs() if first else None,
                finish_reason=self.finish_reason,
                stop_reason=self._stop_reason,
                num_cached_tokens=self.num_cached_tokens,
                spec=self.spec.stats(),
            )
        )
        return verified

    def _append(self) -> int:
        sampling = self.request.sampling
        early = self.num_output_tokens < sampling.min_tokens
        token = self._source.next(self._ends if early else frozenset())
        self.num_output_tokens += 1
        if token in self._ends:
            self.finish_reason = FinishReason.STOP
            self._stop_reason = token if token in sampling.stop_token_ids else None
        if self.finish_reason is None or sampling.include_stop_str_in_output:
            self._add_text(token)
        if self.finish_reason is None and self.num_output_tokens >= self._max_tokens:
            self.finish_reason = FinishReason.LENGTH
        return token

    def _add_text(self, token: int) -> None:
        may_stop = self.num_output_tokens > self.request.sampling.min_tokens
        stop = self._text.add(token, may_stop=may_stop)
        if stop is not None and self.finish_reason is None:
            self.finish_reason = FinishReason.STOP
            self._stop_reason = stop

    def _note_time(self, first: bool, now_s: float) -> None:
        if first:
            self.times.first_token_s = now_s
        self.times.last_token_s = now_s

    def _logprob(self, position: int, token: int, count: int) -> TokenLogprob:
        greedy = self.request.sampling.temperature == 0
        return token_logprob(self._vocabulary, self.key, position, token, count, greedy)

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        count = self.request.sampling.prompt_logprobs
        if count is None:
            return None
        rest = enumerate(self.request.prompt_token_ids[1:], start=1)
        return (None, *(self._logprob(-i, token, count) for i, token in rest))


def _end_tokens(request: GenerationRequest, vocabulary: Vocabulary) -> frozenset[int]:
    ends = set(request.sampling.stop_token_ids)
    if vocabulary.eos is not None and not request.sampling.ignore_eos:
        ends.add(vocabulary.eos)
    return frozenset(ends)

"""One sequence: its tokens, its end, and the deltas for its reader."""

import asyncio
import re
from dataclasses import dataclass
from enum import StrEnum

from engine_adapter.fake.detokenizer import Detokenizer
from engine_adapter.fake.options import FakeOptions
from engine_adapter.fake.parsing import ChosenCalls
from engine_adapter.fake.schema_text import instance_text
from engine_adapter.fake.tokens import ScriptedSource, TokenSource, text_key, token_logprob
from engine_adapter.fake.vocabulary import Vocabulary
from engine_adapter.seam.counts import ProposerCounts, SpecStats
from engine_adapter.seam.types import (
    NONE,
    Delta,
    FinishReason,
    GenerationRequest,
    SpecMethod,
    TokenLogprob,
)


@dataclass(slots=True)
class Times:
    """The times of a sequence's stages, in seconds of one clock."""

    arrived_s: float
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0


class InjectedFault(StrEnum):
    """A fault of one sequence, injected by `fake_fail_prompt` or `fake_hang_prompt`."""

    FAIL = "fail"
    HANG = "hang"


def injected_fault(
    request: GenerationRequest, options: FakeOptions, vocabulary: Vocabulary
) -> InjectedFault | None:
    """The fault that the options give to a request with such a prompt."""
    if not (options.fake_fail_prompt or options.fake_hang_prompt):
        return None
    text = vocabulary.tokenizer.decode(list(request.prompt_token_ids))
    if options.fake_fail_prompt and options.fake_fail_prompt in text:
        return InjectedFault.FAIL
    if options.fake_hang_prompt and options.fake_hang_prompt in text:
        return InjectedFault.HANG
    return None


def given_text(
    request: GenerationRequest, options: FakeOptions, vocabulary: Vocabulary, seed: int | None
) -> str | None:
    """The text of a scripted answer or of a constraint; `None` leaves it to chance.

    Raises `InvalidRequest` for a schema that the fake engine cannot satisfy.
    """
    constraint = request.sampling.structured_output
    if constraint is None or isinstance(constraint, ChosenCalls):
        scripted = _scripted(request, options, vocabulary)
        if scripted is not None or constraint is None or not constraint.value:
            return scripted
    key = text_key(request.prompt_token_ids, seed)
    return instance_text(constraint.value, key, constraint.param)


def _scripted(
    request: GenerationRequest, options: FakeOptions, vocabulary: Vocabulary
) -> str | None:
    if not options.fake_answers:
        return None
    prompt = vocabulary.tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
    answers = (answer for part, answer in options.fake_answers.items() if _mentions(prompt, part))
    answer = next(answers, None)
    budget = request.sampling.thinking_token_budget
    if answer is None or budget is None:
        return answer
    return _within_budget(answer, budget, vocabulary)


def _within_budget(answer: str, budget: int, vocabulary: Vocabulary) -> str:
    """The answer with only the first tokens of its reasoning."""
    begin, opened, thinking = answer.partition("<think>")
    reasoning, closed, text = thinking.partition("</think>")
    token_ids = vocabulary.tokenizer.encode(reasoning, add_special_tokens=False).ids
    if not opened or len(token_ids) <= budget:
        return answer
    kept_reasoning = vocabulary.tokenizer.decode(token_ids[:budget])
    return f"{begin}{opened}{kept_reasoning}{closed or '</think>'}{text}"


def _mentions(prompt: str, part: str) -> bool:
    """Whether the prompt has the part as whole words: `weather` is not in `get_weather`."""
    begin = r"\b" if re.match(r"\w", part) else ""
    end = r"\b" if re.search(r"\w\Z", part) else ""
    return re.search(begin + re.escape(part) + end, prompt) is not None


class FakeSequence:
    """A live request.

    Attributes:
        spec_method: the method that drafts for it; a switch may change it.
        outbox: the deltas; an exception ends the sequence.
        spec: its statistics.
        num_cached_tokens: prompt tokens found in the prefix cache, known at admission.
        injected_fault: its fault, if its prompt matches an option for faults.
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
        text: str | None = None,
    ) -> None:
        """The text depends on the prompt and on `seed`, which is `None` at temperature 0.

        A given `text` replaces it.
        """
        self.request = request
        self.spec_method = spec_method
        self.outbox: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self.spec = SpecStats()
        self.times = Times(now_s)
        self.num_cached_tokens = 0
        self.injected_fault: InjectedFault | None = None
        adapter = request.lora_adapter.name if request.lora_adapter else ""
        self.key = text_key(request.prompt_token_ids, seed, adapter)
        self.num_output_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._unsent_tokens: list[int] = []
        self._unsent_logprobs: list[TokenLogprob] = []
        self._vocabulary = vocabulary
        self._source: TokenSource | ScriptedSource = (
            TokenSource(vocabulary, self.key, length)
            if text is None
            else ScriptedSource(vocabulary, text)
        )
        self._text = Detokenizer(vocabulary.tokenizer, request.prompt_token_ids, request.sampling)
        remaining_context = max_model_len - len(request.prompt_token_ids)
        max_tokens = request.sampling.max_tokens or remaining_context
        self._max_tokens = min(max_tokens, remaining_context)
        self._ends = _end_tokens(request, vocabulary)

    @property
    def prefilled(self) -> bool:
        """Whether the prompt has been read and the first token emitted."""
        return self.num_output_tokens > 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.request.prompt_token_ids) + self.num_output_tokens

    @property
    def draft_budget(self) -> int:
        """The most draft tokens that can still be accepted."""
        return self._max_tokens - self.num_output_tokens - 1

    def advance(self, proposer: str, drafted: int, accepted: int, now_s: float) -> ProposerCounts:
        """Emits the accepted drafts and one more token, up to the end."""
        is_first = not self.prefilled
        num_emitted = 0
        while num_emitted <= accepted and self.finish_reason is None:
            token = self._append()
            num_emitted += 1
            self._unsent_tokens.append(token)
            if (count := self.request.sampling.logprobs) is not None:
                logprob = self._logprob(self.num_output_tokens - 1, token, count)
                self._unsent_logprobs.append(logprob)
        counts = _row_counts(drafted, min(accepted, num_emitted), num_emitted)
        if not is_first:
            by_proposer = {} if proposer == NONE else {proposer: counts}
            self.spec += SpecStats(1, counts.emitted, by_proposer)
        if is_first:
            self.times.first_token_s = now_s
        self.times.last_token_s = now_s
        is_due = len(self._unsent_tokens) >= self.request.stream_interval
        if is_first or is_due or self.finish_reason is not None:
            self._send(is_first=is_first)
        return counts

    def _send(self, *, is_first: bool) -> None:
        """Puts what is not sent yet into the outbox, as one delta."""
        has_logprobs = self.request.sampling.logprobs is not None
        self.outbox.put_nowait(
            Delta(
                text=self._text.take(finished=self.finish_reason is not None),
                token_ids=tuple(self._unsent_tokens),
                logprobs=tuple(self._unsent_logprobs) if has_logprobs else None,
                prompt_logprobs=self._prompt_logprobs() if is_first else None,
                finish_reason=self.finish_reason,
                stop_reason=self._stop_reason,
                num_cached_tokens=self.num_cached_tokens,
                spec=self.spec,
            )
        )
        self._unsent_tokens.clear()
        self._unsent_logprobs.clear()

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

    def _logprob(self, position: int, token: int, count: int) -> TokenLogprob:
        greedy = self.request.sampling.temperature == 0
        return token_logprob(self._vocabulary, self.key, position, token, count, greedy)

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        count = self.request.sampling.prompt_logprobs
        if count is None:
            return None
        positions = enumerate(self.request.prompt_token_ids[1:], start=1)
        return (None, *(self._logprob(-i, token, count) for i, token in positions))


def _end_tokens(request: GenerationRequest, vocabulary: Vocabulary) -> frozenset[int]:
    ends = set(request.sampling.stop_token_ids)
    if vocabulary.eos is not None and not request.sampling.ignore_eos:
        ends.add(vocabulary.eos)
    return frozenset(ends)


def _row_counts(drafted: int, accepted: int, emitted: int) -> ProposerCounts:
    """The counts of one row in one step."""
    return ProposerCounts(
        drafts=int(drafted > 0),
        drafted=drafted,
        accepted=accepted,
        accepted_per_position=(1,) * accepted + (0,) * (drafted - accepted),
        emitted=emitted,
    )

"""The matchers of constraints: each grammar is compiled once, and its masks are bounded in time.

vLLM compiles the grammar of every sequence again, and lets a matcher that has failed end its text
as if it were complete. Here equal grammars share one compilation, and a matcher that fails, or
whose masks take too long, ends its request with the reason. Workers have matchers of their own for
drafts; drafts then ignore a grammar for which these take too long.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.compiled_grammars import (
    GrammarsFull,
    GrammarStore,
    GrammarUse,
)
from engine_adapter.vllm_engine.grammars import new_matcher
from engine_adapter.vllm_engine.wire import GRAMMARS_FULL


class BoundedGrammar(compat.GuidanceGrammar):
    """The matcher of one sequence.

    vLLM also asks it about drafts, which it takes back. What fails on a draft must not end a text
    that plain decoding would finish: a failure counts only when a token is accepted after it, and
    is forgotten when vLLM continues with the sequence. A failed matcher is made again. The store
    forgets a grammar that has failed: with it, it forgets what lexers have learned in vain.

    Attributes:
        failure: why the sequence cannot be continued; `None` while it can.
        last_turn: when `SlowRows` let its row run last.
    """

    def __init__(self, use: GrammarUse, tokenizer: Any, vocab_size: int) -> None:
        super().__init__(ll_matcher=use.copy(), ll_tokenizer=tokenizer, vocab_size=vocab_size)
        self.failure: str | None = None
        self.last_turn = 0
        self._use = use
        self._allowance = use.compiled.allowance
        self._draft_allowance = use.compiled.draft_allowance
        self._tokens: list[int] = []
        # The tokens after which no mask could be computed, and the reason.
        self._maskless: tuple[list[int], str] | None = None

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advances the matcher; `False` ends the request with an error, or rejects a draft."""
        with self._watched():
            self.failure = self._fault() or self._missing_mask_before(tokens)
            accepted = self.failure is None and super().accept_tokens(request_id, tokens)
            self.failure = self.failure or self._fault()
        if not accepted or self.failure is not None:
            return False
        self._tokens.extend(tokens)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The first drafts that the matcher accepts; none if it fails on them."""
        with self._watched():
            valid = list(super().validate_tokens(tokens))
        return [] if self._fault() else valid

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens."""
        with self._watched():
            super().rollback(num_tokens)
            if num_tokens > 0:
                del self._tokens[-num_tokens:]

    def fill_bitmask(self, bitmask: Any, idx: int) -> None:
        """Writes the mask of the next token. After a failure any will do: it is not emitted."""
        if not self._is_given_up:
            with self._watched(self._allowance.spend_on_mask):
                super().fill_bitmask(bitmask, idx)
        if (fault := self._fault()) is not None:
            bitmask[idx].fill_(-1)
            self._maskless = ([*self._tokens], fault)

    @property
    def num_tokens(self) -> int:
        """How many tokens of the sequence it has accepted."""
        return len(self._tokens)

    @property
    def guides_drafts(self) -> bool:
        """Whether proposers may still ask the workers' matchers of this grammar."""
        return not (self._draft_allowance.is_spent or self._is_given_up)

    @property
    def is_slow(self) -> bool:
        """Whether its sequences are to have no drafts: each would need one more mask in a step."""
        return self._allowance.was_slow or self._allowance.is_low

    def take_slow_s(self) -> float:
        """The seconds that slow calls of the grammar have taken since it was asked last."""
        slow_s, self._allowance.slow_s = self._allowance.slow_s, 0.0
        return slow_s

    @property
    def _is_given_up(self) -> bool:
        """Whether the grammar has taken too much, so that all its sequences must end."""
        return self._allowance.is_spent or self._use.compiled.has_learned_too_much

    def spend_on_drafts(self, seconds: float, calls: int) -> None:
        """Counts a step's calls of a worker's matcher. They never end a text, only the guiding."""
        self._draft_allowance.spend(seconds, calls=calls)

    def check_error(self) -> None:
        """Nothing: `failure` goes to the client instead of the log."""

    def forget(self) -> None:
        """Lets the store forget the grammar."""
        self._use.drop()

    @contextmanager
    def _watched(self, spend: Callable[[float, float], None] | None = None) -> Iterator[None]:
        """Around a call of the matcher, which begins without an error."""
        with self._use.timed(spend or self._allowance.spend):
            if not self._is_given_up:
                # vLLM would have ended the sequence if the failure had been on its own token.
                self.failure = None
                if self.ll_matcher.is_error():
                    self._make_again()
            yield
        if self._is_given_up:
            self.failure = self._fault()
            self._use.drop()

    def _make_again(self) -> None:
        self.ll_matcher = self._use.copy()
        for token in self._tokens:
            if self.ll_matcher.is_stopped():
                break
            self.ll_matcher.consume_token(token)

    def _missing_mask_before(self, tokens: list[int]) -> str | None:
        """Why one of the next tokens has no mask, if that is known."""
        if self._maskless is None:
            return None
        maskless_tokens, reason = self._maskless
        next_tokens = self._tokens + tokens
        follows = (
            len(next_tokens) > len(maskless_tokens)
            and next_tokens[: len(maskless_tokens)] == maskless_tokens
        )
        return reason if follows else None

    def _fault(self) -> str | None:
        if self._allowance.is_spent:
            return "it takes too much time for each token; simplify it"
        if self._use.compiled.has_learned_too_much:
            return "it takes too much memory while its text is generated; simplify it"
        if self.ll_matcher.is_error():
            return str(self.ll_matcher.get_error())
        return None


class GrammarCompiler:
    """Compiles grammars for vLLM, equal ones once. vLLM calls it from several threads."""

    def __init__(self, store: GrammarStore) -> None:
        self._store = store

    def compile(
        self, backend: Any, request_type: Any, grammar_spec: str, size: int | None = None
    ) -> BoundedGrammar:
        """The matcher of a new sequence.

        Args:
            backend: vLLM's `GuidanceBackend`.
            size: the bytes that the grammar takes, if they are known.

        Raises `ValueError` for a grammar that cannot be enforced, or takes too much memory.
        """
        grammar = compat.serialize_guidance_grammar(
            request_type,
            grammar_spec,
            backend.disable_any_whitespace,
            backend.disable_additional_properties,
        )
        use = self._store.use(
            grammar, lambda: _warmed(new_matcher(backend.ll_tokenizer, grammar)), size
        )
        with use.compiled.lock:
            for allowance in (use.compiled.allowance, use.compiled.draft_allowance):
                allowance.begin()
        return BoundedGrammar(use, backend.ll_tokenizer, backend.vocab_size)


def _warmed(matcher: Any) -> Any:
    """A matcher whose copies share what the lexer learns by a mask: their first ones are quick."""
    matcher.compute_bitmask()
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def forget_constraint(request: Any) -> None:
    """Lets the store forget the grammar of vLLM's `Request`, which has failed."""
    if isinstance(grammar := request.structured_output_request.grammar, BoundedGrammar):
        grammar.forget()


def failure_of(request: Any) -> str | None:
    """Why a constraint has ended vLLM's `Request`; `None` if it has not."""
    constrained = request.structured_output_request
    if constrained is None:
        return None
    grammar = constrained.grammar
    if isinstance(grammar, GrammarsFull):
        return GRAMMARS_FULL
    if isinstance(grammar, Exception):
        return str(grammar)
    return getattr(grammar, "failure", None)


def constraint_starts(manager: Any, requests: Iterable[Any]) -> dict[str, int]:
    """Request id -> the position in its tokens at which its constraint begins.

    A request without a constraint has no entry, nor has one that still reasons, nor one whose
    constraint has taken too long at drafts. The step in which the reasoning ends is known to the
    next step.

    Args:
        manager: vLLM's `StructuredOutputManager`.
        requests: vLLM's.
    """
    after_reasoning = manager.reasoner_cls is not None and not manager.enable_in_reasoning
    starts = {}
    for request in requests:
        constrained = request.structured_output_request
        if constrained is None or (after_reasoning and not constrained.reasoning_ended):
            continue
        grammar = constrained.grammar
        if isinstance(grammar, BoundedGrammar) and grammar.guides_drafts:
            starts[request.request_id] = request.num_tokens - grammar.num_tokens
    return starts


def slow_constraints(requests: Iterable[Any]) -> set[str]:
    """The ids of the requests whose constraint is too slow for drafts: see `is_slow`.

    Args:
        requests: vLLM's.
    """
    return {
        request.request_id
        for request in requests
        if (constrained := request.structured_output_request) is not None
        and isinstance(constrained.grammar, BoundedGrammar)
        and constrained.grammar.is_slow
    }


def count_draft_times(requests: Mapping[str, Any], times: Mapping[str, tuple[float, int]]) -> None:
    """Counts what the constraints of live requests took in a step of drafting.

    EngineCore decides for all ranks, from the times of one: ranks must draft the same.

    Args:
        requests: vLLM's.
        times: `DraftReport.constraint_times`.
    """
    for request_id, (seconds, calls) in times.items():
        constrained = request_id in requests and requests[request_id].structured_output_request
        if constrained and isinstance(constrained.grammar, BoundedGrammar):
            constrained.grammar.spend_on_drafts(seconds, calls)

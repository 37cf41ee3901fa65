"""The constraints of rows, in the worker: what structured output allows where drafts begin.

EngineCore's matchers are in another process and wait for the verified tokens, so every rank follows
the rows that are drafted for with matchers of its own. Ranks read the same tokens with the same
grammars, so they see the same. They decide only about drafts: EngineCore's mask decides about the
text. What they take is counted, and EngineCore leaves out of `RowConstraints.starts` those that
took too much.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.compiled_grammars import GrammarUse, process_store
from engine_adapter.vllm_engine.grammars import BACKEND, new_matcher
from engine_adapter.vllm_engine.panics import panics_as_errors
from engine_adapter.vllm_engine.wire import SpecgateConfig, grammar_bytes_of
from engine_adapter.vllm_engine.worker.drafting.tensor_parallel import is_only_rank

log = logging.getLogger(__name__)

MAX_FORCING_CHARS = 32_000
"""The longest serialized grammar that forces tokens. A schema with a constant of 100,000 characters
takes 0.5 s for the first forced tokens of each row, and every row waits for it.
"""


STEP_S = 0.1
"""CPU time that the constraint of a row may take in a step, in seconds, if there is one rank.

Masks of a hostile grammar take up to 0.07 s each, and a step may need 16 of them.
"""


def cut_mask(mask: npt.NDArray[np.int32], vocabulary: int) -> npt.NDArray[np.int32]:
    """The part of a mask that the target has tokens for; its tokenizer may have more.

    Args:
        mask: [N, words], a bit for each token of the tokenizer.
        vocabulary: how many tokens the target has.
    """
    return mask[:, : -(-vocabulary // 32)]


class RowConstraint:
    """A `Constraint`: the matcher of a row. It has read the row, and perhaps drafts after it.

    If a token does not fit, it knows nothing of what follows: it forces no token and allows all. So
    it does for the rest of a step in which it has taken too long.

    Args:
        use: the row's hold of its grammar.
        eos: the token that ends a text.
        start: the position in the row at which the constraint begins.
        forces: forced tokens are looked for.
        step_s: the CPU time that it may take in a step, in seconds.
    """

    def __init__(
        self,
        use: GrammarUse,
        eos: int,
        start: int,
        *,
        forces: bool = True,
        step_s: float = float("inf"),
    ) -> None:
        self.start = start
        self._step_s = step_s
        self._forces = forces
        # The forced text that was found last, and the number of tokens before it.
        self._forced_tokens: list[int] = []
        self._forced_after = 0
        self._use = use
        self._matcher = use.copy()
        self._eos = eos
        self._seconds = 0.0
        self._calls = 0
        self._read_tokens: list[int] = []
        self._num_committed = 0
        self._fits = True
        self._draft_fits = True

    def follow(self, tokens: npt.NDArray[np.int32]) -> None:
        """Takes back drafts that the row has not kept, and reads its new tokens.

        Args:
            tokens: int32 [T], the committed tokens of the row from `start` on.
        """
        if not self._fits:
            return
        with self._timed():
            self._follow(tokens)

    def _follow(self, tokens: npt.NDArray[np.int32]) -> None:
        new_tokens: list[int] = tokens[self._num_committed :].tolist()
        drafted = self._read_tokens[self._num_committed :]
        pairs = enumerate(zip(drafted, new_tokens, strict=False))
        num_matching = next(
            (i for i, (a, b) in pairs if a != b), min(len(drafted), len(new_tokens))
        )
        self._take_back(len(drafted) - num_matching)
        self._fits = self._consume(new_tokens[num_matching:])
        self._draft_fits = True
        self._num_committed = len(tokens)

    def forced(self, count: int) -> list[int]:
        """See `Constraint.forced`. If the text must end after them, its end is forced too."""
        if not (self._forces and self._is_known) or self._matcher.is_stopped():
            return []
        with self._timed():
            return self._forced(count)

    def _forced(self, count: int) -> list[int]:
        tokens = self._next_forced(count)
        if not tokens or len(tokens) == count:
            return tokens
        num_read = len(self._read_tokens)
        ends = self._consume(tokens) and self._has_ended
        self._take_back(len(self._read_tokens) - num_read)
        return [*tokens, self._eos] if ends else tokens

    def _next_forced(self, count: int) -> list[int]:
        """The next forced tokens. Each forced text is looked for once, since it may be long."""
        consumed = self._read_tokens[self._forced_after :]
        if (
            not consumed
            or len(consumed) >= len(self._forced_tokens)
            or consumed != self._forced_tokens[: len(consumed)]
        ):
            self._forced_tokens = self._matcher.compute_ff_tokens()
            self._forced_after, consumed = len(self._read_tokens), []
        return self._forced_tokens[len(consumed) : len(consumed) + count]

    def advance(self, token: int) -> None:
        """Reads a draft."""
        if self._is_known:
            with self._timed():
                self._draft_fits = self._consume([token])

    def mask(self) -> bytes | None:
        """One bit for each token of the vocabulary, 1 if it is allowed; `None` if all are."""
        if not self._is_known:
            return None
        with self._timed() as returned:
            mask: bytes = self._matcher.compute_bitmask()
            returned.append(mask)
        return None if self._matcher.is_error() else mask

    def take_time(self) -> tuple[float, int]:
        """Ends a step. The CPU seconds that the matcher took in it, and in how many calls."""
        spent = self._seconds, self._calls
        self._seconds, self._calls = 0.0, 0
        return spent

    @contextmanager
    def _timed(self) -> Iterator[list[object]]:
        """Around a call of the matcher; the list takes what it returns."""
        with self._use.timed(self._spend) as returned:
            yield returned

    def _spend(self, seconds: float, reading_s: float) -> None:
        self._seconds += seconds + reading_s
        self._calls += 1

    @property
    def _is_known(self) -> bool:
        in_time = self._seconds < self._step_s
        return in_time and self._fits and self._draft_fits and not self._matcher.is_error()

    @property
    def _has_ended(self) -> bool:
        """Whether only the end of the text may follow."""
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())

    def _consume(self, tokens: list[int]) -> bool:
        """Reads tokens as far as they fit; whether all do. The end of the text is not read."""
        count = self._matcher.try_consume_tokens(tokens)
        self._read_tokens += tokens[:count]
        return count == len(tokens) or self._has_ended

    def _take_back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)
            del self._read_tokens[-count:]


class RowConstraints:
    """The constraints of the live requests that are drafted for.

    Args:
        vllm_config: the engine's configuration.
        runner: vLLM's; its requests are read.

    Attributes:
        starts: request id -> the position in its tokens at which its constraint begins; of the
            step's requests that have one.
    """

    def __init__(self, vllm_config: Any, runner: Any) -> None:
        self._vllm_config = vllm_config
        self._runner = runner
        self._tokenizer: Any = None
        self._rows: dict[str, RowConstraint | None] = {}
        self.starts: Mapping[str, int] = {}

    def prepare(self) -> None:
        """Reads the tokenizer, if its grammars are for the engine's backend: up to a second.

        Then the process's store of compiled grammars has its budget.

        Called when a proposer is created that needs it, perhaps in another thread.
        """
        config = self._vllm_config
        if self._tokenizer is not None or config.structured_outputs_config.backend != BACKEND:
            return
        if config.model_config.skip_tokenizer_init:
            return
        tokenizer = compat.cached_tokenizer_from_config(config.model_config)
        if compat.GuidanceBackend.is_tokenizer_supported(tokenizer):
            vocab_size = config.model_config.get_vocab_size()
            store = process_store()
            store.budget = SpecgateConfig.from_vllm_config(config).max_grammar_bytes
            # Other ranks must drop the same grammars.
            store.measures = is_only_rank(config.parallel_config)
            self._tokenizer = compat.GuidanceBackend._build_ll_tokenizer(tokenizer, vocab_size)

    def for_batch(self, batch: DraftBatch) -> Sequence[RowConstraint | None]:
        """The constraint of each row that is drafted for, which has read the row; or `None`."""
        if not self.starts or self._tokenizer is None:
            return [None] * len(batch.rows)
        row_constraints: list[RowConstraint | None] = []
        for i, (request_id, k) in enumerate(zip(batch.request_ids, batch.k.tolist(), strict=True)):
            start = self.starts.get(request_id)
            row = None if start is None or not k else self._row(request_id, start)
            if row is not None:
                row.follow(batch.context(i)[row.start :])
            row_constraints.append(row)
        return row_constraints

    def take_times(self) -> dict[str, tuple[float, int]]:
        """Request id -> `RowConstraint.take_time`, of those that were asked since the last call."""
        times = {r: row.take_time() for r, row in self._rows.items() if row is not None}
        return {request_id: time for request_id, time in times.items() if time[1]}

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the constraints of requests that ended."""
        for request_id in request_ids:
            self._rows.pop(request_id, None)

    def _row(self, request_id: str, start: int) -> RowConstraint | None:
        row = self._rows.get(request_id)
        if request_id not in self._rows or (row is not None and row.start != start):
            row = self._rows[request_id] = self._new_row(request_id, start)
        return row

    def _new_row(self, request_id: str, start: int) -> RowConstraint | None:
        params = self._runner.requests[request_id].sampling_params
        try:
            with panics_as_errors():
                grammar = self._serialized(params.structured_outputs)
                use = process_store().use(
                    grammar,
                    lambda: new_matcher(self._tokenizer, grammar),
                    grammar_bytes_of(params),
                    refuses=False,
                )
        except ValueError as error:
            # EngineCore has compiled it. Without it the row is only drafted for less well.
            log.error("the drafts of %s do not know its constraint: %s", request_id, error)
            return None
        forces = len(grammar) <= MAX_FORCING_CHARS
        # Ranks take different times, but must draft the same.
        step_s = STEP_S if is_only_rank(self._vllm_config.parallel_config) else float("inf")
        eos = self._tokenizer.eos_token
        return RowConstraint(use, eos, start, forces=forces, step_s=step_s)

    def _serialized(self, params: Any) -> str:
        config = self._vllm_config.structured_outputs_config
        return str(
            compat.serialize_guidance_grammar(
                *compat.get_structured_output_key(params),
                config.disable_any_whitespace,
                config.disable_additional_properties,
            )
        )

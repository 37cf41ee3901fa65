"""A real dispatch without vLLM: tests give it batches of rows, and echo proposers draft.

The drafts of an echo proposer show its tag and the row's length, and it records its calls. The
runner and the scheduler's output are replaced by objects with the fields that the dispatch reads.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from engine_adapter.policies.contract import StepPlan
from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import Capabilities, ProposerSpec
from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker.target import TargetStep

CONTEXT = 64
BLOCK = 4
WIDE_BLOCK = 8
"""Tokens per block of the second KV cache group."""
VOCABULARY = 1000


class EchoProposer:
    """Drafts `tag` plus the row's length, k times; records its calls."""

    def __init__(self, tag: int, catchup_tokens: int = 0) -> None:
        self.tag, self.catchup_tokens = tag, catchup_tokens
        self.batches: list[DraftBatch] = []
        self.forgotten: list[str] = []

    def propose(self, batch: DraftBatch) -> Drafts:
        self.batches.append(batch)
        lengths = batch.num_tokens.tolist()
        tokens = [
            [self.tag + length] * k for length, k in zip(lengths, batch.k.tolist(), strict=True)
        ]
        return Drafts(tokens, catchup_tokens=self.catchup_tokens)

    def forget(self, request_ids: Sequence[str]) -> None:
        self.forgotten.extend(request_ids)


class RecordingDraftModel:
    """Takes a draft model's place; records the calls about blocks and requests."""

    reads_images = False

    def __init__(self) -> None:
        self.max_model_len = CONTEXT
        self.fresh: list[list[int]] = []
        self.copies: list[Any] = []
        self.forgotten: list[str] = []

    def bind_kv_cache(self, kv_cache_config: Any, kernel_block_sizes: list[int]) -> None: ...

    def blocks_changed(self, fresh: list[list[int]], copies: list[Any]) -> None:
        self.fresh, self.copies = list(fresh), list(copies)

    def forget(self, request_ids: list[str]) -> None:
        self.forgotten.extend(request_ids)


@dataclass
class Row:
    """A row of the batch after a step.

    Attributes:
        length: committed tokens; in the middle of a prompt, all tokens of the prompt.
        sampled: tokens that the step emitted; 0 in the middle of a prompt.
        scheduled: tokens that the target read in the step.
        computed: tokens that it had read before.
    """

    length: int
    sampled: int
    scheduled: int
    computed: int
    prompt: int


def row(length: int, sampled: int = 1, scheduled: int = 1, prompt: int = 2) -> Row:
    """A decoding row: before the step, all tokens but its newest one were computed."""
    return Row(length, sampled, scheduled, length - sampled - 1, prompt)


def prompt_row(length: int, computed: int, scheduled: int) -> Row:
    """A row that is still in its prompt after the step."""
    return Row(length, 0, scheduled, computed, length)


class DispatchHarness:
    """A dispatch with echo proposers `a`, `b`, `c`, and `d`, which has a draft model."""

    def __init__(self, module: Any) -> None:
        self.dispatch = module.ProposerDispatch(
            SimpleNamespace(
                additional_config={"specgate": {"proposers": [], "progress_pipe": None}},
                cache_config=SimpleNamespace(block_size=BLOCK),
            )
        )
        self.echoes = {name: EchoProposer(100 * (i + 1)) for i, name in enumerate("abcd")}
        self.draft_model = RecordingDraftModel()
        self.runner = SimpleNamespace(
            max_model_len=CONTEXT,
            input_batch=None,
            device=torch.device("cpu"),
            requests=defaultdict(lambda: SimpleNamespace(mm_features=[])),
        )
        self.dispatch.bind(self.runner)
        host = self.dispatch.host
        host.proposers.update(self.echoes)
        host.specs = tuple(ProposerSpec(name, "ngram", 4, None) for name in self.echoes)
        host.draft_models = {"d": self.draft_model}
        groups = [
            SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size))
            for size in (BLOCK, WIDE_BLOCK)
        ]
        self.dispatch.bind_kv_cache(SimpleNamespace(kv_cache_groups=groups), [])
        host._target = SimpleNamespace(vocab_size=VOCABULARY)
        host.capabilities = {
            "a": Capabilities(continues=True),
            "b": Capabilities(),
            "c": Capabilities(model=True, hidden_states=True),
            "d": Capabilities(model=True, draft_kv=True),
        }
        self.report: DraftReport

    def finds_nothing(self, name: str, *request_ids: str) -> None:
        """Makes a proposer find nothing for these rows, or for any row."""
        echo = self.echoes[name]
        drafts_of = echo.propose

        def propose(batch: DraftBatch) -> Drafts:
            drafts = drafts_of(batch)
            empty = request_ids or batch.request_ids
            pairs = zip(batch.request_ids, drafts.tokens, strict=True)
            return Drafts([[] if r in empty else tokens for r, tokens in pairs])

        echo.propose = propose  # type: ignore[method-assign]

    def propose(
        self,
        rows: Mapping[str, Row],
        plan: Mapping[str, tuple[str, int]],
        fallbacks: Mapping[str, tuple[str, int]] | None = None,
        shadows: Mapping[str, Sequence[str]] | None = None,
        verify_caps: Mapping[str, Sequence[int]] | None = None,
    ) -> dict[str, list[int]]:
        """The drafts of each row after a step; the step's report is in `report` afterwards.

        Args:
            plan, fallbacks: each row's proposer and k.
            shadows: proposer -> rows.
            verify_caps: of each row, how many tokens of a draft of each length are kept.
        """
        every = list(rows.values())
        self.runner.input_batch = SimpleNamespace(
            req_ids=list(rows),
            req_id_to_index={name: i for i, name in enumerate(rows)},
            num_tokens_no_spec=np.array([r.length for r in every], np.int32),
            num_prompt_tokens=np.array([r.prompt for r in every], np.int32),
            num_computed_tokens_cpu=np.array([r.computed for r in every], np.int32),
            token_ids_cpu=np.tile(np.arange(CONTEXT, dtype=np.int32), (len(every), 1)),
        )
        drafts, self.report = self.dispatch.propose(
            StepPlan(
                {name: SpecMethod(*chosen) for name, chosen in plan.items()},
                {name: SpecMethod(*chosen) for name, chosen in (fallbacks or {}).items()},
                shadows or {},
                verify_caps or {},
            ),
            TargetStep(
                scheduled={name: r.scheduled for name, r in rows.items()},
                num_sampled=np.array([r.sampled for r in every]),
                rows=np.arange(len(every)),
                starts=np.cumsum([0, *(max(r.sampled, 1) for r in every)]),
                sample_places=torch.arange(len(self.hidden(every))),
                hidden=self.hidden(every),
            ),
        )
        self.report.complete()
        return {name: list(row) for name, row in zip(rows, drafts, strict=True)}

    @staticmethod
    def hidden(rows: Sequence[Row]) -> torch.Tensor:
        """The state of the row's j-th sampled position: [10 * row + j, row]."""
        return torch.tensor(
            [[10.0 * i + j, i] for i, r in enumerate(rows) for j in range(max(r.sampled, 1))]
        )


def idle_sampler(rows: int = 64) -> Any:
    """vLLM's sampler of requests without options that change logits."""
    return SimpleNamespace(
        logits_processors=[],
        sampling_states=SimpleNamespace(min_p=SimpleNamespace(np=np.zeros(rows, np.float32))),
        use_fp64_gumbel=False,
        are_plain=lambda rows: False,  # a row may sample
    )


def output(**fields: Any) -> Any:
    """The fields of a `SchedulerOutput` that the dispatch reads."""
    empty = {
        "finished_req_ids": set(),
        "scheduled_new_reqs": [],
        "scheduled_cached_reqs": cached(),
        "kv_cache_block_copies": None,
        "preempted_req_ids": None,
        "specgate_quarantined": frozenset(),
        "specgate_constraints": {},
    }
    return SimpleNamespace(**empty | fields)


Blocks = tuple[list[int], list[int]]
"""The blocks of a request, by KV cache group."""


def cached(*rows: tuple[str, Blocks | None]) -> Any:
    """Running requests: id, new blocks."""
    return SimpleNamespace(
        req_ids=[name for name, _ in rows], new_block_ids=[blocks for _, blocks in rows]
    )


def new(blocks: Blocks, computed: int) -> Any:
    """A request that is scheduled for the first time, or again after it was preempted."""
    return SimpleNamespace(block_ids=blocks, num_computed_tokens=computed)

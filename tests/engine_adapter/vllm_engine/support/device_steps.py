"""Steps of Specgate's part of the worker on the pretend device, with one proposer.

The hooks of the runner, the dispatch, the proposer and the verification are real, and so is
vLLM's part of the step (`device_runner`). The target and the forward pass of a draft model are
stand-ins that stay on the device, as vLLM's are: what they would do there is not Specgate's.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.policies.contract import StepPlan
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.types import NONE, SpecMethod
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import SpecgateConfig
from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch
from engine_adapter.vllm_engine.worker.drafting import paged_block_head, paged_head, paged_model
from engine_adapter.vllm_engine.worker.drafting.draft_noise import DraftNoise
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedModel
from engine_adapter.vllm_engine.worker.request_rows import RequestRows, RowTables
from engine_adapter.vllm_engine.worker.runner import RunnerHooks
from engine_adapter.vllm_engine.worker.speculator import PlannedSpeculator
from engine_adapter.vllm_engine.worker.step_drafts import LateStepDrafts, StepDrafts
from engine_adapter.vllm_engine.worker.verification.exact_match import ExactMatch
from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler
from tests.engine_adapter.proposers import heads
from tests.engine_adapter.proposers.heads import HIDDEN, VOCABULARY
from tests.engine_adapter.vllm_engine.support.device_cases import (
    DRAWING,
    GATED,
    LIMITED,
    PROPOSERS,
    SAMPLED,
    SEEDED,
    UNKEPT,
    K,
)
from tests.engine_adapter.vllm_engine.support.device_runner import DeviceRunner, put_on_the_device
from tests.engine_adapter.vllm_engine.support.pretend_device import GPU, Log, PretendDevice
from tests.engine_adapter.vllm_engine.support.toy_models import ToyLoaded

ROWS, CONTEXT, BLOCK = 5, 96, 8
BUDGET = 64
"""Tokens of one forward pass of a draft model."""


WORLD = SimpleNamespace(
    budget=BUDGET, max_model_len=CONTEXT, draft_contexts={}, block_sizes=(BLOCK,)
)
"""What a toy model knows of the engine."""


class DeviceModel:
    """A draft model's module: random states and logits."""

    def __init__(self) -> None:
        self.embedding = torch.randn(VOCABULARY, HIDDEN).to(GPU)
        self.output = torch.randn(VOCABULARY, HIDDEN).to(GPU)
        self.model = SimpleNamespace()

    def __call__(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs_embeds: None = None,
        hidden_states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        states = self.embedding[input_ids.long()]
        return states if hidden_states is None else states + hidden_states

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.output.T

    def compute_candidates(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        likeliest = self.compute_logits(hidden).topk(K)
        return likeliest.indices, likeliest.values

    def combine_hidden_states(self, joined: torch.Tensor) -> torch.Tensor:
        return joined[:, :HIDDEN]

    def precompute_and_store_context_kv(self, states: Any, positions: Any, slots: Any) -> None:
        """Stores nothing: the stand-in needs no KV."""


class DeviceLoaded(ToyLoaded):
    """Replaces what loads a draft model; the buffers are those of vLLM's."""

    hidden_size = HIDDEN
    dtype = torch.float32
    slot_mapping = LoadedModel.slot_mapping
    placed = LoadedModel.placed
    _is_eager = False

    def __init__(self, spec: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(WORLD, spec, vllm_config, device)
        self.vllm_config = vllm_config
        self.slot_buffers = {0: torch.zeros(BUDGET, dtype=torch.int64, device=device)}
        self.input_ids = torch.zeros(BUDGET, dtype=torch.int32, device=device)
        self.positions = torch.zeros(BUDGET, dtype=torch.int64, device=device)
        self.hidden_states = torch.zeros(BUDGET, HIDDEN, device=device)
        model = DeviceModel()
        if (spec.model or "").endswith("/candidates"):
            self.selector = SimpleNamespace(
                hidden_projection=lambda states: states,
                predecessor_codebook=model.embedding,
                successor_codebook=model.output,
            )
            self.needs_whole_blocks, self.num_candidates = True, K
        self.candidates = model.compute_candidates
        self.model = model  # type: ignore[assignment]

    def tp_scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    def attention_metadata(self, common: Mapping[int, Any]) -> dict[str, Any]:
        """vLLM's part."""
        return {}

    def execution(self, total: int) -> tuple[None, int]:
        return None, total


class Target(DeviceModel):
    """The target: only the tokens 0, 1 and 2 follow, so that texts repeat themselves."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = super().compute_logits(hidden)
        logits[:, 3:] -= 1000
        return logits


class DeviceSteps(RunnerHooks, DeviceRunner):
    """A runner with one proposer, whose rows draft in every step.

    Args:
        device: counts.
        method: the proposer's method, or `none`.
        asks: what the rows ask for: one of the constants of `device_cases`.
        folder: for the checkpoint of heads.
        late: drafts are made when the next step begins, as under asynchronous scheduling.

    Attributes:
        log: what the newest `step` did.
        drafts: the drafts of each row after it; late, those of the step before.
    """

    def __init__(
        self, device: PretendDevice, method: str, asks: str, folder: Path, *, late: bool = False
    ) -> None:
        DeviceRunner.__init__(
            self,
            rows=ROWS,
            context=CONTEXT,
            capacity=K,
            vocabulary=VOCABULARY,
            block_size=BLOCK,
            sampler=RuleSampler,
        )
        self._spy, self._asks, self._method, self._late = device, asks, method, late
        self.rng = np.random.default_rng(3)
        torch.manual_seed(3)
        self.log, self.faults = Log(), {}
        self.drafts: list[list[int]] = [[] for _ in range(ROWS)]
        self.model = Target()
        self._capacity = K
        self._drafts = (LateStepDrafts if late else StepDrafts)(self, K)
        self._drafts.drafts_early = late
        self.speculator = PlannedSpeculator(self, K)
        self.rejection_sampler = ExactMatch(self.sampler)
        self.draft_noise = DraftNoise(self.sampler)
        self.input_batch = RequestRows(self.req_states)
        self.input_batch.bind_sampling(self.sampler.sampling_states)
        self.input_batch.block_table = RowTables(self.block_tables)
        self.requests = {}
        self._names = [f"r{row}" for row in range(ROWS)]
        self._start_dispatch(_fields(method, asks, folder))
        self._starting = [self._request(name) for name in self._names]
        # What the scheduler knows: how many tokens of each row were read, with rejected drafts
        # until their step's output is taken.
        self._computed = dict.fromkeys(self._names, 0)
        self._outputs: deque[tuple[Any, Any, int]] = deque()

    def _request(self, name: str) -> Any:
        """vLLM's `NewRequestData`."""
        from vllm import SamplingParams

        row, blocks = self._names.index(name), CONTEXT // BLOCK
        tokens = self.rng.integers(0, 3, 20 + row).tolist()
        params = SamplingParams(**OPTIONS.get(self._asks, {"temperature": 0.0}))
        params._all_stop_token_ids = {VOCABULARY - 1}
        return SimpleNamespace(
            req_id=name,
            prompt_len=len(tokens),
            prompt_token_ids=tokens,
            prefill_token_ids=tokens,
            num_computed_tokens=0,
            sampling_params=params,
            block_ids=[list(range(row * blocks, (row + 1) * blocks))],
            lora_request=None,
            mm_features=[],
        )

    def _start_dispatch(self, fields: Mapping[str, Any]) -> None:
        config = SpecgateConfig(parse_specs([fields]))
        self.drafter = ProposerDispatch(
            SimpleNamespace(
                additional_config=config.to_additional_config(),
                cache_config=SimpleNamespace(block_size=BLOCK),
                compilation_config=SimpleNamespace(static_forward_context={}),
                structured_outputs_config=SimpleNamespace(backend="none"),
                num_speculative_tokens=config.proposers[0].num_speculative_tokens,
                model_config=SimpleNamespace(
                    get_vocab_size=lambda: VOCABULARY,
                    get_hidden_size=lambda: HIDDEN,
                    dtype=torch.float32,
                ),
            )
        )
        self.drafter.bind(self)
        self.drafter.load_model(self.model)  # type: ignore[arg-type]
        states = [head._states for head in self.drafter.host.heads if head._states is not None]
        self._state_layers = [one.name for one in states]
        models = self.drafter.host.draft_models.values()
        self._layers = {name for model in models for name in model.layer_names}
        group = SimpleNamespace(
            kv_cache_spec=SimpleNamespace(block_size=BLOCK), layer_names=self._state_layers
        )
        blocks = ROWS * CONTEXT // BLOCK
        kv_cache = SimpleNamespace(num_blocks=blocks, kv_cache_groups=[group])
        self.drafter.bind_kv_cache(kv_cache, [BLOCK])
        for one in states:
            one.kv_cache = torch.zeros(blocks, 1, BLOCK, HIDDEN, device=GPU)

    # -- a step ------------------------------------------------------------------------------

    def step(self) -> None:
        """Verifies the drafts of the step before and drafts; `log` has what was noted."""
        scheduled = self._schedule()
        with self._spy.noting(self.log):
            self.execute_model(scheduled)
            output = self.sample_tokens(None)
            drafts = None if self._late else self.take_draft_token_ids()
        self._starting = []
        by_request: dict[str, list[int]] = {}
        if self._late:  # the core does not ask for them: no row has a grammar
            reached = self._spy.reached
            by_request = {name: list(row) for name, row in self._drafts.drafts.items()}
            self._spy.reached = reached
        elif drafts is not None:
            by_request = dict(zip(drafts.req_ids, drafts.draft_token_ids, strict=True))
        self.drafts = [by_request.get(name, []) for name in self._names]
        self._outputs.append((scheduled, output, self._spy.recorded))
        if not self._late or len(self._outputs) > 1:
            self._take_output(*self._outputs.popleft())
        if report := self._drafts.report:
            self._spy.reached = self._spy.recorded if not self._late else self._spy.reached
            report.complete()
            self.faults = report.faults

    def _take_output(self, scheduled: Any, output: Any, recorded: int) -> None:
        """What the core does: it waits for the tokens, and counts the drafts that are rejected.

        `recorded` are the events up to the end of the step, which the device then reaches.
        """
        result = output.get_output()
        self._spy.reached = max(self._spy.reached, recorded)
        for name, tokens in zip(result.req_ids, result.sampled_token_ids, strict=True):
            if name in scheduled.scheduled_spec_decode_tokens:
                self._computed[name] -= scheduled.num_scheduled_tokens[name] - len(tokens)

    def _schedule(self) -> Any:
        """The scheduler's output of the next step."""
        new = self._starting
        if new:
            places: dict[str, list[int]] = {}
            scheduled = {request.req_id: request.prompt_len for request in new}
        else:
            late = [[-1] * K if self._method != NONE else [] for _ in self._names]
            by_row = late if self._late else self.drafts
            places = {name: row for name, row in zip(self._names, by_row, strict=True) if row}
            scheduled = {name: 1 + len(places.get(name, ())) for name in self._names}
        running = [] if new else self._names
        computed = [self._computed[name] for name in running]
        for name, count in scheduled.items():
            self._computed[name] += count
        plan = {} if self._method == NONE else dict.fromkeys(self._names, SpecMethod("it", K))
        return SimpleNamespace(
            finished_req_ids=set(),
            preempted_req_ids=None,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=running,
                num_computed_tokens=computed,
                new_block_ids=[None for _ in running],
                resumed_req_ids=set(),
            ),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_spec_decode_tokens=places,
            kv_cache_block_copies=None,
            new_block_ids_to_zero=None,
            has_structured_output_requests=False,
            specgate_plan=StepPlan(plan),
            specgate_quarantined=frozenset(),
            specgate_constraints={},
        )

    def forward(self, batch: Any) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
        """See `DeviceRunner.forward`."""
        hidden = torch.randn(batch.num_tokens, HIDDEN, device=GPU)
        auxiliary = [hidden for _ in self.drafter.host.aux_layers]
        return hidden, auxiliary, dict.fromkeys(self._layers, self.block_tables.slots(batch))


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    SAMPLED: {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    SEEDED: {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7},
    LIMITED: {
        "temperature": 0.0,
        "repetition_penalty": 1.1,
        "logit_bias": {3: 1.0},
        "min_tokens": 50,
        "max_tokens": 90,
    },
}
"""What the rows ask for -> the options of their `SamplingParams`. Others are greedy."""


def _fields(method: str, asks: str, folder: Path) -> Mapping[str, Any]:
    """The settings of the proposer."""
    method = "ngram" if method == NONE else method
    fields = {"name": "it", "method": method, "num_speculative_tokens": K, **PROPOSERS[method]}
    if method in ("medusa", "mlp_speculator"):
        layout = {"token_map": 40} if method == "medusa" else {"n_predict": K}
        fields["model"] = getattr(heads, method)(**layout).write(folder)
    if asks in (SAMPLED, SEEDED) and method in DRAWING:
        fields["draft_sampling"] = "probabilistic"
    if asks == GATED:
        fields["min_confidence"] = 1e-6
    if asks == UNKEPT:
        fields["keep_states"] = False
    return fields


@contextmanager
def models_on_the_device(monkeypatch: pytest.MonkeyPatch, device: PretendDevice) -> Iterator[None]:
    """A scope in which vLLM's runner is on the device, and draft models are stand-ins there."""
    with monkeypatch.context() as patched:
        put_on_the_device(patched, device)
        patched.setattr(paged_model, "LoadedDraft", DeviceLoaded)
        patched.setattr(paged_head, "LoadedHead", DeviceLoaded)
        patched.setattr(paged_block_head, "LoadedBlockHead", DeviceLoaded)
        patched.setattr(compat, "set_forward_context", lambda *_, **__: nullcontext())
        yield

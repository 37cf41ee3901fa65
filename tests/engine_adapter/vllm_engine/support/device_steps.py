"""Steps of Specgate's part of the worker on the pretend device, with one proposer.

The hooks of the runner, the dispatch, the proposer and the verifier are real, and so is vLLM's
sampler. The target and the forward pass of a draft model are stand-ins that stay on the device, as
vLLM's are: what they would do there is not Specgate's.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine_adapter.vllm_engine.worker.verification.seeding import GeneratorPool
from engine_adapter.vllm_engine.worker.verification.verifier import Verifier

from engine_adapter.policies.contract import StepPlan
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.types import SpecMethod
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import SpecgateConfig
from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch
from engine_adapter.vllm_engine.worker.drafting import paged_block_head, paged_head, paged_model
from engine_adapter.vllm_engine.worker.drafting.draft_noise import GeneratorNoise
from engine_adapter.vllm_engine.worker.drafting.weights import NamedDraft
from engine_adapter.vllm_engine.worker.runner import RunnerHooks, StepState
from engine_adapter.vllm_engine.worker.verification import logits_processors
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
from tests.engine_adapter.vllm_engine.support.pretend_device import GPU, Log, PretendDevice
from tests.engine_adapter.vllm_engine.support.toy_models import ToyLoaded

ROWS, CONTEXT, BLOCK = 5, 96, 8
BUDGET = 64
"""Tokens of one forward pass of a draft model."""


class DeviceModel:
    """A draft model's module: random states and logits."""

    def __init__(self) -> None:
        self.embedding = torch.randn(VOCABULARY, HIDDEN).to(GPU)
        self.output = torch.randn(VOCABULARY, HIDDEN).to(GPU)

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

    def combine_hidden_states(self, joined: torch.Tensor) -> torch.Tensor:
        return joined[:, :HIDDEN]

    def precompute_and_store_context_kv(self, states: Any, positions: Any, slots: Any) -> None:
        """Stores nothing: the stand-in needs no KV."""


class DeviceLoaded(ToyLoaded):
    """Replaces what loads a draft model; the buffers are those of vLLM's."""

    hidden_size = HIDDEN
    dtype = torch.float32
    slot_mapping = NamedDraft.slot_mapping
    placed = NamedDraft.placed
    _is_eager = False

    def __init__(self, spec: Any, vllm_config: Any, device: Any, runner: Any) -> None:
        super().__init__(spec, vllm_config, device, runner)
        self.vllm_config = vllm_config
        self._slot_buffers = {0: torch.zeros(BUDGET, dtype=torch.int64, device=device)}
        self.input_ids = torch.zeros(BUDGET, dtype=torch.int32, device=device)
        self.positions = torch.zeros(BUDGET, dtype=torch.int64, device=device)
        self.hidden_states = torch.zeros(BUDGET, HIDDEN, device=device)
        self.model = DeviceModel()  # type: ignore[assignment]

    def tp_scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    def attention_metadata(self, common: Mapping[int, Any]) -> dict[str, Any]:
        """vLLM's part."""
        return {}

    def execution(self, total: int) -> tuple[None, int, None]:
        return None, total, None


class Steps(RunnerHooks):
    """A runner with one proposer, whose rows draft in every step.

    Args:
        device: counts.
        method: the proposer's method.
        asks: what the rows ask for: one of the constants above.
        folder: for the checkpoint of heads.
    """

    def __init__(self, device: PretendDevice, method: str, asks: str, folder: Path) -> None:
        self._spy, self._asks, self._has_read = device, asks, False
        self.device, self.max_model_len = GPU, CONTEXT
        self.parallel_config = SimpleNamespace(world_size=1)
        self.world = SimpleNamespace(
            budget=BUDGET, max_model_len=CONTEXT, draft_contexts={}, block_sizes=(BLOCK,)
        )
        self.rng = np.random.default_rng(3)
        self.log = Log()
        self.drafts: list[list[int]] = [[] for _ in range(ROWS)]
        self._start_rows()
        self.sampler = _sampler()
        self.rejection_sampler = Verifier(self.sampler)
        self.draft_noise = GeneratorNoise(self.sampler)
        self._step = StepState()
        self._generators = GeneratorPool(GPU)
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
        self._start_dispatch(fields)

    def _start_rows(self) -> None:
        self.lengths = np.arange(20, 20 + ROWS).astype(np.int32)
        ids = [f"r{row}" for row in range(ROWS)]
        seeded, hot = self._asks == SEEDED, self._asks in (SAMPLED, SEEDED)
        params = SimpleNamespace(seed=7 if seeded else None, extra_args=None)
        self.requests = {name: SimpleNamespace(sampling_params=params) for name in ids}
        blocks = np.arange(ROWS * CONTEXT // BLOCK, dtype=np.int32).reshape(ROWS, -1)
        self.input_batch = SimpleNamespace(
            num_reqs=ROWS,
            req_ids=ids,
            req_id_to_index={name: row for row, name in enumerate(ids)},
            num_tokens_no_spec=self.lengths,
            num_prompt_tokens=self.lengths - 5,
            num_computed_tokens_cpu=self.lengths - 1,
            token_ids_cpu=self.rng.integers(0, 3, (ROWS, CONTEXT)).astype(np.int32),
            temperature_cpu=np.full(ROWS, 0.8 if hot else 0.0, np.float32),
            top_k_cpu=np.full(ROWS, 20, np.int32),
            top_p_cpu=np.full(ROWS, 0.9, np.float32),
            generators={row: torch.Generator() for row in range(ROWS)} if seeded else {},
            block_table=[_Table(blocks)],
            sampling_metadata=_metadata(self._asks),
        )

    def _start_dispatch(self, fields: Mapping[str, Any]) -> None:
        config = SpecgateConfig(parse_specs([fields]))
        self.drafter = ProposerDispatch(
            SimpleNamespace(
                additional_config=config.to_additional_config(),
                cache_config=SimpleNamespace(block_size=BLOCK),
                compilation_config=SimpleNamespace(static_forward_context={}),
                structured_outputs_config=SimpleNamespace(backend="none"),
                model_config=SimpleNamespace(
                    get_vocab_size=lambda: VOCABULARY,
                    get_hidden_size=lambda: HIDDEN,
                    dtype=torch.float32,
                ),
            )
        )
        self.drafter.bind(self)
        self.drafter.load_model(DeviceModel())  # type: ignore[arg-type]
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
        counts = [len(drafts) for drafts in self.drafts]
        positions = sum(counts) + ROWS
        metadata: Any = SimpleNamespace(
            num_draft_tokens=counts,
            draft_token_ids=torch.tensor([*chain(*self.drafts)], dtype=torch.int32).to(GPU),
        )
        self.input_batch.sampling_metadata.spec_token_ids = self.drafts
        logits = torch.randn(positions, VOCABULARY).to(GPU)
        with self._spy.noting(self.log):
            self._sample(logits, metadata)
        emitted = [[*drafts[: row % 2], 1] for row, drafts in enumerate(self.drafts)]
        output = self._commit(emitted)
        hidden = torch.randn(positions, HIDDEN).to(GPU)
        slots = torch.arange(positions).to(GPU)
        auxiliary = [hidden for _ in self.drafter.host.aux_layers]
        with self._spy.noting(self.log):
            self.drafts = self.propose_draft_token_ids(
                output,
                emitted,
                None,
                hidden,
                hidden,
                auxiliary,
                metadata,
                None,
                dict.fromkeys(self._layers, slots),
            )

    def _commit(self, emitted: Sequence[Sequence[int]]) -> Any:
        """Appends the tokens to the rows; the scheduler's output of the step."""
        batch = self.input_batch
        scheduled = {}
        for row, tokens in enumerate(emitted):
            begin = self.lengths[row]
            batch.token_ids_cpu[row, begin : begin + len(tokens)] = tokens
            # The first step reads the rows from their beginning.
            batch.num_computed_tokens_cpu[row] = begin - 1 if self._has_read else 0
            self.lengths[row] += len(tokens)
            scheduled[batch.req_ids[row]] = 1 + len(self.drafts[row])
        self._has_read = True
        plan = StepPlan({name: SpecMethod("it", K) for name in batch.req_ids}, {}, {}, {})
        return SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled.values()),
            num_scheduled_tokens=scheduled,
            specgate_plan=plan,
        )


class _VllmsSample:
    """What vLLM's `_sample` does."""

    sampler: Any
    rejection_sampler: Any
    input_batch: Any

    def _sample(self, logits: torch.Tensor, metadata: Any) -> Any:
        sampling = self.input_batch.sampling_metadata
        if metadata is None:
            return self.sampler(logits=logits, sampling_metadata=sampling)
        inputs = self._get_spec_decode_draft_probs(metadata)  # type: ignore[attr-defined]
        return self.rejection_sampler(metadata, inputs, logits, sampling)


class DeviceSteps(Steps, _VllmsSample):
    """See `Steps`."""


class _Table:
    """vLLM's block table of a KV cache group."""

    block_size = BLOCK

    def __init__(self, blocks: Any) -> None:
        self._blocks, self._device = blocks, torch.from_numpy(blocks).to(GPU)

    def get_numpy_array(self) -> Any:
        return self._blocks

    def get_device_tensor(self, num_reqs: int) -> torch.Tensor:
        return self._device[:num_reqs]


def _sampler() -> Any:
    from vllm.v1.sample.sampler import Sampler

    sampler = Sampler()
    plain = sampler.topk_topp_sampler
    plain.forward = plain.forward_native  # as on a GPU
    return sampler


def _metadata(asks: str) -> Any:
    """vLLM's sampling metadata of the rows, on the device."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate
    from vllm.v1.sample.metadata import SamplingMetadata

    limited, hot = asks == LIMITED, asks in (SAMPLED, SEEDED)
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=ROWS))
    processors = logits_processors.build(config, GPU)
    options: dict[str, Any] = {}
    if limited:
        options = {"logit_bias": {3: 1.0}, "min_tokens": 50, "max_tokens": 90}
    params = SamplingParams(temperature=0.8 if hot else 0.0, **options)
    params._all_stop_token_ids = {0}
    history: list[list[int]] = [[1, 2] for _ in range(ROWS)]
    added = [(row, params, None, history[row]) for row in range(ROWS)]
    for processor in processors.all:
        processor.update_state(BatchUpdate(ROWS, removed=[], added=added, moved=[]))
    return SamplingMetadata(
        temperature=torch.full((ROWS,), 0.8, device=GPU) if hot else None,
        all_greedy=not hot,
        all_random=hot,
        top_p=torch.full((ROWS,), 0.9, device=GPU) if hot else None,
        top_k=torch.full((ROWS,), 20, dtype=torch.int32, device=GPU) if hot else None,
        generators={},
        max_num_logprobs=None,
        no_penalties=not limited,
        prompt_token_ids=torch.ones(ROWS, 3, dtype=torch.int64, device=GPU) if limited else None,
        frequency_penalties=torch.zeros(ROWS, device=GPU),
        presence_penalties=torch.zeros(ROWS, device=GPU),
        repetition_penalties=torch.full((ROWS,), 1.1, device=GPU),
        output_token_ids=history if limited else [],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=processors,
        spec_token_ids=[[] for _ in range(ROWS)],
    )


@contextmanager
def models_on_the_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A scope in which draft models are stand-ins on the device."""
    from vllm.v1.sample.ops import penalties

    with monkeypatch.context() as patched:
        patched.setattr(paged_model, "LoadedDraft", DeviceLoaded)
        patched.setattr(paged_head, "LoadedHead", DeviceLoaded)
        patched.setattr(paged_block_head, "LoadedBlockHead", DeviceLoaded)
        patched.setattr(compat, "set_forward_context", lambda *_, **__: nullcontext())
        # As on a GPU. vLLM's worker for CPUs replaces the method in every process that imports it.
        patched.setattr(penalties, "PIN_MEMORY", True)
        patched.setattr(torch.Tensor, "pin_memory", torch._C.TensorBase.pin_memory)
        yield

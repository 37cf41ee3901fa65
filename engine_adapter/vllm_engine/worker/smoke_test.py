"""The smoke test: every proposer drafts once for a row that no request has, before it serves one.

Weights that load can still fail in the first forward pass, and the target's hidden states can be
others than a head expects. In a step of the engine that costs every request its drafts, or the
engine its life. Here it refuses the proposer.

The row's KV is in vLLM's null block, which no request owns. Nothing is counted, and no random
number of the engine's own generator is drawn. Every rank must try the same proposers together,
because heads and draft models exchange data between ranks.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.proposers.contract import Proposer, ProposerSpec
from engine_adapter.proposers.draft_options import samples
from engine_adapter.proposers.methods import get_method, needs
from engine_adapter.vllm_engine.worker.draft_validation import (
    repair_distributions,
    require_distributions,
    validate_drafts,
)
from engine_adapter.vllm_engine.worker.drafting.draft_sampling import RowSampler
from engine_adapter.vllm_engine.worker.drafting.paged_head import PagedHead
from engine_adapter.vllm_engine.worker.proposer_host import ProposerHost
from engine_adapter.vllm_engine.worker.start_failure import log_and_describe

SMOKE_TEST_REQUEST = "specgate-smoke-test"
"""The request id of the row."""

NULL_BLOCK = 0
"""The KV block that vLLM gives to no request."""

_LENGTH = 4
_SEED = 0


@dataclass(frozen=True, slots=True)
class _ScratchTable:
    """A block table of one row, all of whose blocks are the null block."""

    block_size: int
    blocks: npt.NDArray[np.int32]
    on_device: torch.Tensor

    @classmethod
    def like(cls, table: Any, device: torch.device) -> "_ScratchTable":
        blocks = np.full((1, table.get_numpy_array().shape[1]), NULL_BLOCK, np.int32)
        return cls(table.block_size, blocks, torch.from_numpy(blocks).to(device))

    def get_numpy_array(self) -> npt.NDArray[np.int32]:
        """See vLLM's `BlockTable`."""
        return self.blocks

    def get_device_tensor(self, num_reqs: int) -> torch.Tensor:
        """See vLLM's `BlockTable`."""
        return self.on_device[:num_reqs]


class _RecordedModel:
    """A runner's model that keeps what its last call returned."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.output: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.output = self.model(*args, **kwargs)
        return self.output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class ProposerSmokeTest:
    """Tries proposers between two steps.

    Args:
        runner: vLLM's.
        host: the loaded proposers.
    """

    def __init__(self, runner: Any, host: ProposerHost) -> None:
        self._runner = runner
        self._host = host
        length = max(2, min(_LENGTH, runner.max_model_len - 1))
        # A repetition, so that a search finds something.
        self._tokens = np.arange(length, dtype=np.int32)[None] % 2
        # The target's final hidden state of each token but the newest, [_LENGTH - 1, H].
        self._hidden: torch.Tensor | None = None

    @torch.inference_mode()
    def faults(self) -> dict[str, str]:
        """Tries every loaded proposer; call it before the first request.

        Returns:
            The reason for each proposer that failed.
        """
        faults = self._store_states()
        for spec in self._host.specs:
            if spec.name in faults:
                continue
            if reason := self.fault_of(spec, self._host.proposers[spec.name]):
                faults[spec.name] = reason
        return faults

    @torch.inference_mode()
    def fault_of(self, spec: ProposerSpec, proposer: Proposer) -> str | None:
        """Why the proposer cannot draft; `None` if it can. It need not be installed.

        A proposer that drafts with others has nothing of its own that could fail.
        """
        if get_method(spec.method).capabilities.members:
            return None
        try:
            with self._scratch_row(), self._own_random_numbers():
                for sampled in (False, True) if samples(spec) else (False,):
                    batch = self._batch(spec, sampled=sampled)
                    if batch.k[0] < 1:  # the context has no room for a draft
                        return None
                    try:
                        drafted = proposer.propose(batch)
                        drafts = validate_drafts(drafted, batch, self._vocab_size)
                        require_distributions(repair_distributions(drafts))
                    finally:
                        self._forget(spec, proposer)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            return log_and_describe(f"proposer {spec.name}", error)
        return None

    # -- the target --------------------------------------------------------------------------

    def _store_states(self) -> dict[str, str]:
        """Runs the target once, and lets every head store its states. Returns the heads' faults."""
        count = self._tokens.shape[1] - 1
        final, auxiliary = self._run_target(count)
        self._hidden = final
        slots = torch.arange(count, device=final.device)  # of the null block
        faults = {}
        for name, head in self._host.draft_models.items():
            if not isinstance(head, PagedHead):
                continue
            try:
                by_layer = dict(zip(self._host.aux_layers, auxiliary, strict=True))
                head.store_states(dict.fromkeys(head.layer_names, slots), final, by_layer)
            except torch.AcceleratorError:
                raise
            except Exception as error:
                faults[name] = log_and_describe(f"proposer {name}", error)
        return faults

    def _run_target(self, count: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The target's states for `count` tokens: final [count, H], and those of `aux_layers`."""
        # What the runner calls is replaced, not what is in it: compiled code calls no `forward` and
        # no hook of the model, and a model whose steps are captured has a wrapper around it.
        recorded = self._runner.model = _RecordedModel(self._runner.model)
        try:
            # In a profile no graph is replayed, for which vLLM would not call the model. Layers of
            # attention and recurrent ones compute nothing: with metadata for the former alone, as
            # vLLM makes it in a profile, a gated delta network fails on a CPU.
            self._runner._dummy_run(count, is_profile=True, skip_attn=True, skip_eplb=True)
        finally:
            self._runner.model = recorded.model
        output = recorded.output
        final, auxiliary = output if self._runner.use_aux_hidden_state_outputs else (output, [])
        return _bounded(final[:count]), [_bounded(states[:count]) for states in auxiliary]

    # -- the row -----------------------------------------------------------------------------

    @property
    def _vocab_size(self) -> int:
        return self._host.target.vocab_size

    def _batch(self, spec: ProposerSpec, *, sampled: bool) -> DraftBatch:
        length = self._tokens.shape[1]
        required = needs(spec, self._host.specs)
        ones = np.ones(1, np.int64)
        context = self._runner.max_model_len
        if model := self._host.draft_models.get(spec.name):
            context = min(context, model.max_model_len)
        k = np.minimum(ones * spec.num_speculative_tokens, context - length)
        sampler = RowSampler(
            self._runner.draft_noise,
            temperature=np.ones(1, np.float32),
            top_k=np.full(1, self._vocab_size, np.int32),
            top_p=np.ones(1, np.float32),
            seeds=[_SEED],
            num_tokens=ones * length,
        )
        tokens = self._tokens.view()
        tokens.flags.writeable = False
        return DraftBatch(
            rows=np.zeros(1, np.intp),
            request_ids=[SMOKE_TEST_REQUEST],
            num_tokens=ones * length,
            # All of them, so that a proposer that learns from outputs learns nothing.
            num_prompt_tokens=ones * length,
            num_computed=np.zeros(1, np.int64),
            k=k,
            token_ids=tokens,
            hidden=self._newest_state() if required.hidden_states else None,
            predicted=[self._tokens[0]] if required.prediction else None,
            sampling=sampler if sampled else None,
        )

    def _newest_state(self) -> torch.Tensor:
        assert self._hidden is not None
        return self._hidden[-1:]

    @contextmanager
    def _scratch_row(self) -> Iterator[None]:
        """Within it, the runner's batch is the one row."""
        runner = self._runner
        batch = runner.input_batch
        runner.input_batch = SimpleNamespace(
            num_reqs=1,
            req_ids=[SMOKE_TEST_REQUEST],
            req_id_to_index={SMOKE_TEST_REQUEST: 0},
            num_tokens_no_spec=np.array([self._tokens.shape[1]], np.int32),
            block_table=[
                _ScratchTable.like(table, runner.device) for table in batch.block_table.block_tables
            ],
        )
        try:
            yield
        finally:
            runner.input_batch = batch

    def _own_random_numbers(self) -> AbstractContextManager[Any]:
        """Within it, the engine's generator is a copy: vLLM's sampler draws even for a seed."""
        device = self._runner.device
        context: AbstractContextManager[Any] = torch.random.fork_rng(
            [] if device.type == "cpu" else [device], device_type=device.type
        )
        return context

    def _forget(self, spec: ProposerSpec, proposer: Proposer) -> None:
        """Drops the row. That KV of the null block was computed is noted, and means nothing."""
        proposer.forget([SMOKE_TEST_REQUEST])
        if model := self._host.draft_models.get(spec.name):
            model.forget([SMOKE_TEST_REQUEST])


_LARGEST = 1e3
"""Of the states; far from the limits of every dtype."""


def _bounded(states: torch.Tensor) -> torch.Tensor:
    """The states with numbers that a head can read.

    Without metadata vLLM's attention returns memory as it was, which may hold anything.
    """
    return states.nan_to_num(0.0, 0.0, 0.0).clamp(-_LARGEST, _LARGEST)

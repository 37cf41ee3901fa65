"""The batch that a proposer gets for its rows, built from vLLM's batch after a step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.proposers.contract import Capabilities
from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine.wire import from_extra_args
from engine_adapter.vllm_engine.worker.constraints import RowConstraints
from engine_adapter.vllm_engine.worker.target import TargetStep


class DraftBatchBuilder:
    """Builds draft batches, and remembers the predicted tokens of live requests.

    Args:
        runner: vLLM's.
        constraints: of the rows.
    """

    def __init__(self, runner: Any, constraints: RowConstraints) -> None:
        self._runner = runner
        self._constraints = constraints
        self._predicted: dict[str, npt.NDArray[np.int32] | None] = {}

    def build(
        self,
        rows: list[int],
        plan: Mapping[str, SpecMethod],
        step: TargetStep,
        capabilities: Capabilities,
    ) -> DraftBatch:
        """The batch for `rows` of vLLM's batch, with what the proposer needs of each.

        Args:
            plan: request id -> proposer and k.
            step: what the target did in this step.
            capabilities: what the proposer needs.
        """
        batch = self._runner.input_batch
        index = np.asarray(rows)
        request_ids = [batch.req_ids[row] for row in rows]
        emitted = step.num_sampled[index] > 0
        k = np.array([plan[request_id].num_speculative_tokens for request_id in request_ids])
        computed = batch.num_computed_tokens_cpu[index].astype(np.int64)
        num_tokens = batch.num_tokens_no_spec[index].astype(np.int64)
        if not emitted.all():
            # A row in the middle of its prompt ends, for now, after the tokens read so far.
            k *= emitted
            num_scheduled = [step.scheduled[request_id] for request_id in request_ids]
            num_tokens = np.where(emitted, num_tokens, computed + num_scheduled)
        draft_batch = DraftBatch(
            rows=index,
            request_ids=request_ids,
            num_tokens=num_tokens,
            num_prompt_tokens=batch.num_prompt_tokens[index].astype(np.int64),
            num_computed=computed,
            k=k,
            token_ids=read_only(batch.token_ids_cpu),
            hidden=step.last_hidden(index) if capabilities.hidden_states else None,
            predicted=[self._prediction(request_id) for request_id in request_ids]
            if capabilities.prediction
            else None,
        )
        if not capabilities.constraint:
            return draft_batch
        return replace(draft_batch, constraints=self._constraints.for_batch(draft_batch))

    def before(
        self, request_ids: Sequence[str], k: Sequence[int], rows: npt.NDArray[np.intp]
    ) -> DraftBatch:
        """The batch for rows of a step that is not read yet, as they were before it: all [R]."""
        batch = self._runner.input_batch
        return DraftBatch(
            rows=rows.astype(np.intp),
            request_ids=request_ids,
            num_tokens=batch.num_tokens_no_spec[rows].astype(np.int64),
            num_prompt_tokens=batch.num_prompt_tokens[rows].astype(np.int64),
            num_computed=batch.num_computed_before(rows).astype(np.int64),
            k=np.array(k),
            token_ids=read_only(batch.token_ids_cpu),
        )

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the predictions of requests that ended."""
        for request_id in request_ids:
            self._predicted.pop(request_id, None)

    def _prediction(self, request_id: str) -> npt.NDArray[np.int32] | None:
        """The tokens that the request predicts, read from vLLM's request once."""
        if request_id not in self._predicted:
            params = self._runner.requests[request_id].sampling_params
            tokens = from_extra_args(params).prediction
            self._predicted[request_id] = np.array(tokens, np.int32) if tokens else None
        return self._predicted[request_id]


def read_only(tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """A view of the rows' tokens, from which the target reads its next ones."""
    view = tokens.view()
    view.flags.writeable = False
    return view

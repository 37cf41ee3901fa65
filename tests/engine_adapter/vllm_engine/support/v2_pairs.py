"""The verifier of runner V2 in the place of V1's, for `verified_pairs`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from engine_adapter.vllm_engine.worker.verification.verifier import VerifyInputs

from engine_adapter.vllm_engine.worker.verification.exact_match import ExactMatch
from engine_adapter.vllm_engine.worker.verification.rejection import SpeculativeSampling
from tests.engine_adapter.vllm_engine.support.exact import Sampling
from tests.engine_adapter.vllm_engine.support.v2_states import rows_of, sampler_of
from tests.engine_adapter.vllm_engine.support.verified_pairs import CPU, PROMPT, V

_LENGTH = 3
"""Positions of a text."""


class V2Verifier:
    """Verifies the two steps of `verified_pairs`.

    V2 keeps the options of a request in its row of states. Here all requests with the same history
    share one; their noise differs, since each has positions of its own.
    """

    def __init__(self, sampling: Sampling) -> None:
        from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler

        options = {
            "seed": 7,  # a request keeps its seed when its history grows
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "logit_bias": dict(sampling.logit_bias) or None,
        }
        histories: list[list[int]] = [[], *([token] for token in range(V))]
        requests = [([PROMPT], history, options) for history in histories]
        self._sampler = sampler_of(V, requests, RuleSampler)
        self._verify = ExactMatch(self._sampler)
        self._texts: Any = None

    def __call__(self, metadata: Any, inputs: VerifyInputs, logits: Any, rows: Any) -> Any:
        """As V1's; the second step has the texts of the first that are not yet complete."""
        sizes = np.array(metadata.num_draft_tokens) + 1
        histories = rows.output_token_ids
        if self._texts is None:
            self._texts = np.arange(len(sizes))
        states = rows_of(self._sampler, range(V + 1))
        state = states[[row[0] + 1 if row else 0 for row in histories]]
        batch = self._batch(state, sizes, [len(row) for row in histories])
        newest = [row[-1] if row else PROMPT for row in histories]
        batch.input_ids = torch.tensor(
            [
                token
                for i, drafts in enumerate(rows.spec_token_ids)
                for token in [newest[i], *drafts]
            ]
        )
        starts = batch.cu_num_logits_np
        self._sampler.rule = (
            SpeculativeSampling(inputs.drafts, starts, CPU) if inputs.drafts else None
        )
        output = self._verify(logits, batch)
        tokens, counts = output.sampled_token_ids, output.num_sampled
        self._texts = self._texts[counts.numpy() < 2]
        places = torch.arange(tokens.shape[1])
        return SimpleNamespace(sampled_token_ids=tokens.masked_fill(places >= counts[:, None], -1))

    def _batch(self, state: Any, sizes: Any, begun: list[int]) -> Any:
        """vLLM's `InputBatch`, without the tokens."""
        starts = np.concatenate([[0], sizes.cumsum()])
        place = np.arange(starts[-1]) - starts[:-1].repeat(sizes)
        positions = (self._texts * _LENGTH + begun).repeat(sizes) + place
        lengths = torch.full((len(sizes),), _LENGTH + 1, dtype=torch.int32)
        return SimpleNamespace(
            num_reqs=len(sizes),
            num_draft_tokens_per_req=sizes - 1,
            idx_mapping=torch.from_numpy(state),
            idx_mapping_np=state,
            expanded_idx_mapping=torch.from_numpy(state.repeat(sizes)),
            expanded_local_pos=torch.from_numpy(place.astype(np.int32)),
            cu_num_logits=torch.from_numpy(starts.astype(np.int32)),
            cu_num_logits_np=starts,
            logits_indices=torch.arange(starts[-1]),
            positions=torch.from_numpy(positions),
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths,
        )

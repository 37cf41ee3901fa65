"""Lookups on the device, before the CPU has the tokens of the step that they follow.

Under asynchronous scheduling the device would have nothing to do from a step's last token until the
CPU has read it, looked it up, and launched the next step. But the device has all tokens of a row,
so it looks them up itself, and the CPU reads them a step later.

The next step gets its shape before the CPU knows which rows have a match. A row has places for all
its k drafts, or for none if the newest lookup that the CPU knows had no match. Places without a
draft hold a token of the row, which is verified as a draft, as in vLLM's `ngram_gpu`.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from engine_adapter.policies.contract import DraftTime, StepPlan
from engine_adapter.proposers.contract import Proposer
from engine_adapter.proposers.device_lookup import DeviceLookup, DeviceTokens
from engine_adapter.proposers.draft_table import DraftRow, DraftTable
from engine_adapter.proposers.staging import HostCopy
from engine_adapter.seam.types import NONE
from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker.draft_clock import DraftClock
from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep

_MOST_UNREAD = 2
"""The most steps whose tokens are not in the mirrors: the newest, and one whose drafts run now."""


@dataclass(frozen=True, slots=True)
class EarlyLookup:
    """The lookup for R rows of a step.

    Attributes:
        proposer: its name.
        table: its drafts, [R, the largest k].
        drafts: request id -> those of its row, whether they match or not. Requests that get none
            are left out.
        has_match: bool [R], on its way to the CPU.
        clock: its time.
    """

    proposer: str
    table: DraftTable
    drafts: Mapping[str, DraftRow]
    has_match: HostCopy
    clock: DraftClock


class EarlyLookups:
    """Calls proposers that look up on the device.

    Args:
        runner: vLLM's, with `input_batch`.
        proposers: by name; one that is loaded or unloaded is added or removed there.
    """

    def __init__(self, runner: Any, proposers: Mapping[str, Proposer]) -> None:
        self._runner = runner
        self._proposers = proposers
        # Requests whose newest lookup that is read had no match.
        self._unmatched: set[str] = set()

    def proposer_of(self, plan: StepPlan, quarantined: Set[str]) -> str | None:
        """The lookup that makes all drafts of a plan, if each row takes what it finds."""
        if plan.fallbacks or plan.shadows or plan.verify_caps:
            return None
        names = {method.proposer for method in plan.drafts.values()} - {NONE}
        if len(names) != 1 or names <= quarantined:
            return None
        (name,) = names
        if not isinstance(self._proposers.get(name), DeviceLookup):
            return None
        requests = self._runner.requests
        if any(requests[id_].sampling_params.structured_outputs is not None for id_ in plan.drafts):
            return None  # the grammar needs the drafts on the CPU
        return name

    def look_up(
        self, name: str, plan: StepPlan, step: UnreadStep, rows: torch.Tensor
    ) -> EarlyLookup | None:
        """Launches a proposer for a step of R rows; `None` if it drafts with `propose` alone.

        Args:
            plan: of which the proposer makes all drafts.
            step: is not read yet.
            rows: int [R], `step.rows` on the device.
        """
        proposer = self._proposers[name]
        assert isinstance(proposer, DeviceLookup)
        batch, states = self._runner.input_batch, self._runner.req_states
        lengths = batch.num_tokens_no_spec[step.rows]
        emits = step.emits(lengths, batch.num_computed_before(step.rows)).tolist()
        tokens: torch.Tensor = states.all_token_ids.gpu
        most_unread = _MOST_UNREAD * (1 + states.draft_tokens.shape[1])
        longest = min(int(lengths.max()) + most_unread, tokens.shape[1])
        k = max(method.num_speculative_tokens for method in plan.drafts.values())
        clock = DraftClock(self._runner.device)
        result = proposer.look_up(
            DeviceTokens(tokens, rows, states.total_len.gpu[rows], longest), k
        )
        clock.stop()
        if result is None:
            return None
        # A prompt may have ids that only its pictures use.
        table = DraftTable(result[0].clamp(max=states.vocab_size - 1), is_read=False)
        drafts = {}
        for i, row in enumerate(step.rows.tolist()):
            method = plan.drafts.get(batch.req_ids[row])
            if method is not None and emits[i]:
                drafts[batch.req_ids[row]] = DraftRow(table, i, method.num_speculative_tokens)
        return EarlyLookup(name, table, drafts, HostCopy(result[1]), clock)

    def take(
        self, lookup: EarlyLookup, ended_ids: Set[str]
    ) -> tuple[dict[str, DraftRow], DraftReport]:
        """The drafts that the next step verifies, by request that has not ended; and the report."""
        without = ended_ids | self._unmatched
        drafts = {id_: row for id_, row in lookup.drafts.items() if id_ not in without}
        report, name = DraftReport(), lookup.proposer
        num_tokens = sum(map(len, drafts.values()))
        report.add_drafts(name, num_tokens, 0)
        longest = max(map(len, lookup.drafts.values()), default=0)

        def read_time() -> None:
            seconds = lookup.clock.read_s()
            report.add_seconds(name, seconds)
            size = len(lookup.drafts), longest, num_tokens
            report.work.append((name, DraftTime(seconds, *size, 0)))

        report.unread.append(read_time)
        return drafts, report

    def note_matches(self, lookup: EarlyLookup) -> None:
        """Reads which rows of a lookup had a match; the step after it has begun."""
        (has_match,) = lookup.has_match.arrays()
        for request_id, drafts in lookup.drafts.items():
            if has_match[drafts.row]:
                self._unmatched.discard(request_id)
            else:
                self._unmatched.add(request_id)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what is noted of requests that have ended."""
        self._unmatched.difference_update(request_ids)

"""The drafts of lookups that a plan keeps in part, or drops for a better proposer's."""

from dataclasses import replace

from engine_adapter.policies.contract import DraftOutcome, StepPlan
from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker.shadows import ShadowDrafts


def cut_drafts(
    plan: StepPlan,
    name: str,
    batch: DraftBatch,
    drafts: Drafts,
    shadows: ShadowDrafts,
    report: DraftReport,
) -> Drafts:
    """The drafts of a proposer as far as `plan.verify_caps` lets them be verified.

    A draft that is dropped waits like a shadow, so that its outcome is known too. A draft that was
    sampled is only cut to its k: its length may tell of its tokens, and if it were dropped because
    of its tokens, the output's distribution would change.

    Args:
        name: the proposer.
        report: gets the lengths before the cuts, and the outcomes that are known.
    """
    tokens = list(drafts.tokens)
    for i, request_id in enumerate(batch.request_ids):
        verify_caps, length = plan.verify_caps.get(request_id), len(tokens[i])
        if verify_caps is None or not length:
            continue
        num_kept = min(length, plan.drafts[request_id].num_speculative_tokens)
        if drafts.probabilities is None:
            num_kept = min(num_kept, verify_caps[length])
        if num_kept:
            report.full_lengths[request_id] = length
            tokens[i] = tokens[i][:num_kept]
            continue
        report.dropped.append(request_id)
        if shadows.waits(request_id, name):
            report.outcomes.append(DraftOutcome(request_id, name, int(batch.k[i]), length, 0, 0))
        else:
            shadows.keep(name, batch, i, tokens[i])
        tokens[i] = []
    return replace(drafts, tokens=tokens)

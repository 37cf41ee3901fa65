"""`cascade`: other proposers in order; for each row the first that has a draft gives it.

Source: vLLM issue 46977 and pull request 24344, n-gram lookup with a model behind it, as wished
for there. Here any loaded proposers can stand in any order, and a model runs for the rows alone
for which nobody before it had a draft.
"""

from collections.abc import Sequence

import numpy as np

from engine_adapter.proposers.batch import DraftBatch, DraftRows, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    Member,
    ProposerMethod,
    ProposerSpec,
)


class CascadeProposer:
    """Asks its members one after the other. They are the proposers of their names, not copies."""

    weights_bytes = 0

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    def propose(self, batch: DraftBatch) -> Drafts:
        """Each row's draft by the first member that has one, at most that member's k tokens.

        A row in mid-prompt is read along by every member with KV. What a member missed of a row
        that others drafted for is caught up when it is needed.
        """
        rows = DraftRows(len(batch.rows))
        for member in self._members:
            wanted = rows.empty if member.draft_kv else rows.empty & (batch.k > 0)
            index = np.flatnonzero(wanted)
            if index.size:
                k = np.minimum(batch.k[index], member.num_speculative_tokens)
                rows.put(index, member.draft(batch.select(index, k)))
        return rows.drafts()

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing is kept; the members are told themselves."""


def _validate(spec: ProposerSpec) -> None:
    members = spec.options["members"]
    if not isinstance(members, list) or not all(isinstance(name, str) for name in members):
        raise ValueError(f"members must be a list of proposers' names, got {members!r}")
    if len(members) < 2 or len(set(members)) < len(members):
        raise ValueError(f"members must be at least two different proposers, got {members!r}")


def _create(spec: ProposerSpec, host: DraftHost) -> CascadeProposer:
    return CascadeProposer([host.member(name) for name in spec.options["members"]])


METHOD = ProposerMethod(
    name="cascade",
    capabilities=Capabilities(members=True),
    default_k=None,
    options={"members": []},
    validate=_validate,
    create=_create,
)
"""The catalog's entry."""

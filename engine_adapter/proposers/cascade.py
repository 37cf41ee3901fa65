"""`cascade`: calls its members in order; the first one with a draft for a row drafts for it.

Source: vLLM issue 46977 and pull request 24344, which ask for n-gram lookup followed by a model.
Here the members are any loaded proposers in any order. A later member drafts only for the rows for
which no earlier member had a draft, so a model runs only where lookup found nothing.
"""

from collections.abc import Sequence

import numpy as np

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    Member,
    OptionError,
    ProposerMethod,
    ProposerSpec,
)
from engine_adapter.seam.text import short_repr


class CascadeProposer:
    """Calls its members one after the other. They are the loaded proposers, not copies."""

    weights_bytes = 0

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    def propose(self, batch: DraftBatch) -> Drafts:
        """The drafts of the first member that has any for the row, at most that member's k.

        Every member with draft KV also reads rows in mid-prompt. A member that is skipped for a
        row lags behind it, and catches up when it is next called for this row.
        """
        collected = DraftCollector(len(batch.rows))
        for member in self._members:
            undrafted = collected.empty if member.draft_kv else collected.empty & (batch.k > 0)
            index = np.flatnonzero(undrafted)
            if index.size:
                k = np.minimum(batch.k[index], member.num_speculative_tokens)
                collected.set(index, member.draft(batch.select(index, k)))
        return collected.collect()

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state, and the engine calls `forget` of each member."""


def _validate(spec: ProposerSpec) -> None:
    members = spec.options["members"]
    if not isinstance(members, list) or not all(isinstance(name, str) for name in members):
        raise OptionError(
            "members", f"must be a list of proposers' names, got {short_repr(members)}"
        )
    if len(members) < 2 or len(set(members)) < len(members):
        message = f"must be at least two different proposers, got {short_repr(members)}"
        raise OptionError("members", message)


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
"""The entry in `METHODS`."""

"""`cascade` and `chain`: call their members in order.

In a cascade the first member with a draft for a row drafts for it, so a model runs only where
lookup found nothing. Source: vLLM issue 46977 and pull request 24344, which ask for n-gram lookup
followed by a model. Here the members are any loaded proposers in any order.

In a chain a lookup also continues the drafts of the members before it, as if they were text: where
a head has drafted the first words of a quotation, the lookup finds the rest. A model does not
continue drafts. It drafts where the members before it found nothing, as in a cascade.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    Member,
    OptionError,
    ProposerMethod,
    ProposerSpec,
)
from engine_adapter.seam.text import short_repr

MAX_CHAIN = 16
"""The most members of a chain, which may have a lookup repeatedly: each is a call in every step."""


class CascadeProposer:
    """Calls its members one after the other. They are the loaded proposers, not copies.

    Args:
        members: in order.
        is_chain: members that can continue the drafts of those before them.
    """

    weights_bytes = 0

    def __init__(self, members: Sequence[Member], *, is_chain: bool = False) -> None:
        self._members = members
        self._is_chain = is_chain

    def propose(self, batch: DraftBatch) -> Drafts:
        """The members' drafts: of each at most its own k, and of all together the batch's.

        Every member with draft KV also reads rows in mid-prompt. A member that is skipped for a
        row lags behind it, and catches up when it is next called for this row.
        """
        drafts: list[Sequence[int]] = [[] for _ in batch.rows]
        lengths, catchup_tokens = np.zeros(len(drafts), np.int64), 0
        for member in self._members:
            continues = self._is_chain and member.continues
            is_called = lengths < batch.k if continues else lengths == 0
            if not member.draft_kv:
                is_called = is_called & (batch.k > 0)
            index = np.flatnonzero(is_called)
            if not index.size:
                continue
            k = np.minimum(batch.k - lengths, member.num_speculative_tokens)[index]
            added = member.draft(batch.select(index, k), [drafts[i] for i in index])
            catchup_tokens += added.catchup_tokens
            for i, tokens in zip(index.tolist(), added.tokens, strict=True):
                if tokens:
                    drafts[i] = [*drafts[i], *tokens] if drafts[i] else tokens
                    lengths[i] = len(drafts[i])
        # The engine has stored the distributions of sampled drafts when it called the members.
        return Drafts(drafts, None, catchup_tokens)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state, and the engine calls `forget` of each member."""


def _validate(spec: ProposerSpec) -> None:
    members = spec.options["members"]
    if not isinstance(members, list) or not all(isinstance(name, str) for name in members):
        raise OptionError(
            "members", f"must be a list of proposers' names, got {short_repr(members)}"
        )
    if len(set(members)) < 2:
        message = f"must be at least two different proposers, got {short_repr(members)}"
        raise OptionError("members", message)


def _check_cascade(names: Sequence[str], capabilities: Mapping[str, Capabilities]) -> None:
    if len(set(names)) < len(names):
        raise OptionError("members", f"must be different proposers, got {short_repr(names)}")


def _check_chain(names: Sequence[str], capabilities: Mapping[str, Capabilities]) -> None:
    if len(names) > MAX_CHAIN:
        raise OptionError("members", f"must be at most {MAX_CHAIN} proposers, got {len(names)}")
    for i, name in enumerate(names):
        is_repeated = name in names[:i]
        if is_repeated and (name == names[i - 1] or not capabilities[name].continues):
            message = f"may have only a lookup twice, with another between, got {short_repr(names)}"
            raise OptionError("members", message)
    if not any(capabilities[name].continues for name in names[1:]):
        message = f"must have a lookup after the first one, got {short_repr(names)}; use a cascade"
        raise OptionError("members", message)


def _create_cascade(spec: ProposerSpec, host: DraftHost) -> CascadeProposer:
    return CascadeProposer([host.member(name) for name in spec.options["members"]])


def _create_chain(spec: ProposerSpec, host: DraftHost) -> CascadeProposer:
    return CascadeProposer([host.member(name) for name in spec.options["members"]], is_chain=True)


CASCADE = ProposerMethod(
    name="cascade",
    capabilities=Capabilities(members=True),
    default_k=max,
    options={"members": []},
    validate=_validate,
    create=_create_cascade,
    check_members=_check_cascade,
)
"""The entry in `METHODS`."""

CHAIN = ProposerMethod(
    name="chain",
    capabilities=Capabilities(members=True),
    default_k=sum,
    options={"members": []},
    validate=_validate,
    create=_create_chain,
    check_members=_check_chain,
)
"""The entry in `METHODS`."""

"""Proposers as policies see them, and their work in a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProposerTraits:
    """A loaded proposer, as policies see it.

    Attributes:
        lookup: it drafts on the CPU without a model, so that it may draft beside another
            proposer and draft in the shadow.
        keeps_kv: it must catch up on tokens that it has not read.
        ends_early: it may draft fewer tokens than it is asked for, where it is not sure of them.
        selectable: policies choose it. They do not choose a cascade, because they choose its
            members, nor a proposer that needs a prediction.
    """

    name: str
    num_speculative_tokens: int
    lookup: bool = False
    keeps_kv: bool = False
    ends_early: bool = False
    selectable: bool = True


@dataclass(frozen=True, slots=True)
class DraftTime:
    """One call of a proposer, as the worker reports it.

    Attributes:
        rows: rows that it was asked for.
        longest: its passes: the largest k among them.
        tokens, catchup: tokens drafted, and tokens of lag removed.
    """

    seconds: float
    rows: int
    longest: int
    tokens: int
    catchup: int

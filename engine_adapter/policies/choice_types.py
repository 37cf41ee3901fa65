"""The plain types of `choice`: the step, the prices, and what is chosen."""

from dataclasses import dataclass

from engine_adapter.policies.acceptance import Floats, Ints

NOTHING = -1
"""The index of no proposer."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the step has besides the rows of the policy.

    Attributes:
        rows: all rows of the step, B.
        tokens: tokens that the target reads anyway: one per row, and the drafts of other rows.
        context: the rows' tokens in total.
    """

    rows: int
    tokens: float
    context: float


@dataclass(frozen=True, slots=True)
class Choice:
    """Proposers and lengths for R rows.

    Attributes:
        proposer, k: each row's proposer (an index into the forecast, or `NOTHING`) and its k, [R].
        verify_caps: if `proposer` is a lookup, how many tokens of a draft of each length are
            verified, [R, K + 1].
        fallback, fallback_k: the same for a row where `proposer` finds nothing that is kept.
        rate: expected tokens per second, of all rows.
        price: the chance of acceptance that pays for one more verified token.
    """

    proposer: Ints
    k: Ints
    verify_caps: Ints
    fallback: Ints
    fallback_k: Ints
    rate: float
    price: float


@dataclass(frozen=True, slots=True)
class Prices:
    """What a plan before this one was worth.

    Attributes:
        rate: tokens per second.
        token: the chance that pays for one more verified token.
        in_use: proposers that drafted in the plan before: they get `bonus` times their gain.
    """

    rate: float
    token: float
    in_use: frozenset[int] = frozenset()
    bonus: float = 1.0


@dataclass(frozen=True, slots=True)
class Cascades:
    """A lookup before each of M models, for R rows, each [R, M].

    Attributes:
        lookups: the lookups, or `NOTHING`.
        values: of lookup and model together.
        p_missed: the chance that nothing of the lookup is kept.
        gates: the lookup's drafts that gain no more are dropped.
    """

    lookups: Ints
    values: Floats
    p_missed: Floats
    gates: Floats

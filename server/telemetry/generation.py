"""A generating request that has ended, as usage, the slow-request log and the trace see it.

It holds figures and names, never a prompt or an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_adapter.seam.counts import ProposerCounts
from engine_adapter.seam.types import SamplingOptions


@dataclass(frozen=True, slots=True)
class Timings:
    """When a request got how far: seconds from its first byte; `None` if it never got there.

    Attributes:
        prepared_s: the body was read, checked and rendered.
        admitted_s: it got its method, and went to the engine.
        first_token_s: the first token of any of its choices arrived.
        total_s: the last byte was sent, or it ended otherwise.
    """

    prepared_s: float
    admitted_s: float | None
    first_token_s: float | None
    total_s: float

    @property
    def queue_s(self) -> float:
        """How long it waited in the gateway for its admission."""
        end = self.total_s if self.admitted_s is None else self.admitted_s
        return end - self.prepared_s


@dataclass(frozen=True, slots=True)
class Selected:
    """The spec method of an admitted request.

    Attributes:
        name: a proposer, a policy, or `none`.
        k: the most tokens that it may draft.
        selected_by: `request`, `rule` or `active`.
        rule: the routing rule, if one decided.
    """

    name: str
    k: int
    selected_by: str
    rule: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no whole answer.

    Attributes:
        code: the error's code, or its type if it has none.
        status: the HTTP status of such an error, also if the answer had begun with another one.
    """

    code: str
    status: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A generating request that has ended: completed, failed or refused.

    Attributes:
        operation: `chat` or `text_completion`.
        model: the served name.
        api_key: the name of its key; `None` without one.
        num_choices: of all prompts together.
        sampling: of the first prompt.
        id: the response's id; `None` if the request was not admitted.
        selected: `None` if the request was not admitted.
        prompt_tokens, cached_tokens, generated_tokens: as in the response's `usage`; 0 without an
            answer.
        finish_reasons: of the choices that have finished.
        drafts: the counts of every proposer that drafted; `None` if the engine did not tell,
            because the request was cut off.
        failure: `None` for a whole answer.
    """

    operation: str
    model: str
    api_key: str | None
    streams: bool
    num_choices: int
    sampling: SamplingOptions
    timings: Timings
    id: str | None = None
    selected: Selected | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finish_reasons: tuple[str, ...] = ()
    drafts: Mapping[str, ProposerCounts] | None = field(default_factory=dict)
    failure: Failure | None = None

    @property
    def drafted(self) -> int | None:
        """Draft tokens that were verified."""
        return None if self.drafts is None else sum(c.drafted for c in self.drafts.values())

    @property
    def accepted(self) -> int | None:
        """Draft tokens that were accepted."""
        return None if self.drafts is None else sum(c.accepted for c in self.drafts.values())

"""The rows of a simulated step: requests in progress, with their drafts and shadow drafts."""

from dataclasses import dataclass, field, replace

from benchmarks.simulation.trace import TracedRequest
from engine_adapter.policies.contract import DraftOutcome, RowView
from engine_adapter.seam.types import SpecMethod


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft that waits for its outcome.

    Attributes:
        found: tokens that the proposer drafted.
        drafted: how many of them are verified.
        start: tokens of the answer when it was made.
    """

    proposer: str
    asked: int
    found: int
    drafted: int
    accepted: int
    start: int

    def outcome(self, request_id: str) -> DraftOutcome:
        """What the planner learns of it."""
        return DraftOutcome(
            request_id, self.proposer, self.asked, self.found, self.drafted, self.accepted
        )

    def cut(self, length: int) -> "Draft":
        """The draft with at most so many tokens verified."""
        drafted = min(self.drafted, length)
        return replace(self, drafted=drafted, accepted=min(self.accepted, drafted))


@dataclass(slots=True)
class Row:
    """A request in progress.

    Attributes:
        written: tokens of the answer.
        unread: tokens of the prompt that the target has not read.
        arrived_s: the time from which its latency counts.
        pending: the draft that the next step verifies.
        waiting: the shadow draft of each proposer.
        read_upto: tokens that each proposer with KV has read.
    """

    request_id: str
    request: TracedRequest
    spec_method: SpecMethod
    unread: int = 0
    arrived_s: float = 0.0
    written: int = 0
    pending: Draft | None = None
    waiting: dict[str, Draft] = field(default_factory=dict)
    read_upto: dict[str, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.request.prompt_tokens + self.written

    @property
    def computed(self) -> int:
        """Tokens that the target has read."""
        return self.length - 1 if self.written else self.request.prompt_tokens - self.unread

    @property
    def ended(self) -> bool:
        """Whether the answer is complete."""
        return self.written >= self.request.output_tokens

    def view(self, in_prompt: bool) -> RowView | None:
        """The row as a policy sees it; `None` if nothing can draft for it.

        Args:
            in_prompt: the step ends in the middle of the prompt.
        """
        # As `core.row_table.draft_budget`: this step and a bonus token take one token each.
        num_left = self.request.output_tokens - self.written - 2
        budget = 0 if in_prompt else max(0, num_left)
        if not self.spec_method.num_speculative_tokens or not (budget or in_prompt):
            return None
        return RowView(
            self.request_id, self.spec_method, budget, self.length, self.request.request_class
        )

    def draft(self, proposer: str, column: int, k: int) -> Draft:
        """What a proposer drafts now; a row that has just ended is still drafted for."""
        position = min(self.written, self.request.output_tokens - 1)
        drafted = min(int(self.request.drafted[position, column]), k)
        accepted = min(int(self.request.accepted[position, column]), drafted)
        return Draft(proposer, k, drafted, drafted, accepted, self.written)

    def decided(self) -> list[DraftOutcome]:
        """The shadow drafts whose outcome the row's tokens decide; they wait no longer."""
        outcomes = []
        for name, draft in list(self.waiting.items()):
            num_known = self.written - draft.start
            if num_known >= draft.drafted or num_known > draft.accepted:
                outcomes.append(draft.outcome(self.request_id))
                del self.waiting[name]
        return outcomes

    def catch_up(self, proposer: str, computed: int, emitted: int) -> tuple[int, int]:
        """A proposer with KV reads the row to its end.

        Args:
            computed: tokens that the target had read before the step.
            emitted: tokens that the step emitted.

        Returns:
            The tokens of lag that it reads, as the worker counts them, and those that it reads
            in truth: in a step that reads the prompt, it reads the prompt too.
        """
        upto = self.read_upto.get(proposer, 0)
        self.read_upto[proposer] = self.length
        return max(0, computed - upto), max(0, self.length - upto - emitted)

"""What drafts for each sequence of a step: the planner of all engines, fed by the fake steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_adapter.fake.sequence import FakeSequence
from engine_adapter.policies.contract import (
    DraftOutcome,
    DraftTime,
    RequestClass,
    RowView,
    StepView,
)
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.policies.planner import Planner, StepOutcome
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import proposer_traits
from engine_adapter.registries.policy_settings import PolicySettings
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.counts import PolicyStep
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.types import NONE, GenerationRequest, PolicyInfo


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence in a step.

    Attributes:
        proposer: what drafted for it, or `none`.
        drafted: its draft tokens, which the same step verifies.
        shadows: proposers that drafted without verification, with their draft tokens.
    """

    sequence: FakeSequence
    proposer: str = NONE
    drafted: int = 0
    shadows: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """A draft after its step: `accepted` of the `drafted` tokens of a request's row."""

    request_id: str
    proposer: str
    drafted: int
    accepted: int


class StepPlanning:
    """Plans the fake engine's steps as the real engine's are, and reports what they did.

    The fake engine drafts and verifies in one step; a proposer always has k tokens. What is
    measured outlives a crash of the engine.
    """

    def __init__(self, config: EngineConfig, capacity: int) -> None:
        """Raises `EngineConfigError` for a parameter of a policy that cannot work."""
        specs = config.proposers
        self._specs = {spec.name: spec for spec in specs}
        self._settings = PolicySettings(config.policies, config.primary)
        traits = [proposer_traits(spec, specs) for spec in specs]
        try:
            self._planner = Planner(traits, capacity, config.policies, config.primary)
        except PolicyError as error:
            raise EngineConfigError("spec_policy", str(error)) from None

    @property
    def policies(self) -> tuple[PolicyInfo, ...]:
        """Every policy, with its current state."""
        states = self._planner.states()
        infos = self._settings.infos(tuple(self._specs.values()))
        return tuple(replace(info, state=states[info.name]) for info in infos)

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the policies have measured."""
        return self._planner.snapshot()

    def set_policy(self, name: str, parameters: Mapping[str, Any]) -> PolicyInfo:
        """Gives a policy these parameters. Raises `PolicyError`."""
        self._planner.set_policy(name, parameters)
        return self._settings.set(name, parameters, tuple(self._specs.values()))

    def load(self, spec: ProposerSpec) -> None:
        """A proposer was loaded."""
        loaded_specs = tuple(self._specs.values())
        self._specs[spec.name] = spec
        self._planner.measurements.add_proposer(proposer_traits(spec, loaded_specs))

    def unload(self, name: str) -> None:
        """A proposer was unloaded."""
        self._specs.pop(name, None)
        self._planner.measurements.remove_proposer(name)

    def admit(self, request: GenerationRequest) -> None:
        """A request begins."""
        self._planner.measurements.admit(request.request_id, _request_class(request))

    def free(self, request_id: str) -> None:
        """A request ended."""
        self._planner.measurements.free(request_id)

    def rows(self, running: Sequence[FakeSequence], num_waiting: int) -> list[Row]:
        """The rows of a step."""
        views = [
            RowView(
                sequence.request.request_id,
                sequence.spec_method,
                sequence.draft_budget,
                sequence.num_tokens,
                _request_class(sequence.request),
            )
            for sequence in running
            if sequence.prefilled
            and sequence.draft_budget > 0
            and sequence.spec_method.num_speculative_tokens
        ]
        if not views:
            return [Row(sequence) for sequence in running]
        plan = self._planner.plan(StepView(views, len(running), num_waiting))
        shadows: dict[str, list[tuple[str, int]]] = {}
        for proposer, requests in plan.shadows.items():
            k = self._specs[proposer].num_speculative_tokens
            for request_id in requests:
                shadows.setdefault(request_id, []).append((proposer, k))
        rows = []
        for sequence in running:
            request_id = sequence.request.request_id
            method = plan.drafts.get(request_id)
            row_shadows = tuple(shadows.get(request_id, ()))
            if method is None or method.num_speculative_tokens < 1:
                rows.append(Row(sequence, shadows=row_shadows))
            else:
                k = method.num_speculative_tokens
                if request_id in plan.verify_caps:
                    full_k = self._specs[method.proposer].num_speculative_tokens
                    k = min(k, plan.verify_caps[request_id][full_k])
                if not k:
                    rows.append(Row(sequence, shadows=row_shadows))
                    continue
                rows.append(Row(sequence, method.proposer, k, row_shadows))
        return rows

    def observe(
        self,
        rows: Sequence[Row],
        outcomes: Sequence[VerifiedDraft],
        emitted: int,
        draft_seconds: Mapping[str, float],
        seconds: float,
        *,
        prefill: bool,
    ) -> PolicyStep | None:
        """Reports a step; returns what the policies did in it.

        Args:
            draft_seconds: of each proposer that drafted.
            seconds: the step's, without the time for drafts.
        """
        work = []
        for proposer, own_seconds in draft_seconds.items():
            ks = [row.drafted for row in rows if row.proposer == proposer]
            work.append((proposer, DraftTime(own_seconds, len(ks), max(ks), sum(ks), 0)))
        drafted = sum(row.drafted for row in rows)
        return self._planner.observe(
            StepOutcome(
                drafts=[
                    self._outcome(draft) for draft in outcomes if draft.proposer in self._specs
                ],
                work=work,
                rows=len(rows),
                tokens=len(rows) + drafted,
                context=sum(row.sequence.num_tokens for row in rows),
                emitted=emitted,
                verified=drafted > 0,
                prefill=prefill,
                seconds=seconds,
            )
        )

    def _outcome(self, draft: VerifiedDraft) -> DraftOutcome:
        """The outcome of a draft for the planner: a proposer of this engine always has k tokens."""
        full_k = self._specs[draft.proposer].num_speculative_tokens
        return DraftOutcome(
            draft.request_id, draft.proposer, full_k, full_k, draft.drafted, draft.accepted
        )


def _request_class(request: GenerationRequest) -> RequestClass:
    if request.sampling.structured_output is not None:
        return RequestClass.STRUCTURED
    return RequestClass.GREEDY if request.sampling.temperature == 0 else RequestClass.SAMPLED

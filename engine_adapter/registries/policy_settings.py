"""The gateway's copy of an engine's policies: their parameters, and what they last reported."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from engine_adapter.policies.catalog import read_policy, to_json
from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.counts import StepReport
from engine_adapter.seam.types import PolicyInfo

log = logging.getLogger(__name__)


class PolicySettings:
    """The policies' parameters, which outlive an engine process.

    Args:
        raw_parameters: policy -> its parameters, where they are not the defaults; checked already.
        primary: the primary proposer, if there is one.

    Attributes:
        raw_parameters: the parameters in force, by policy.
        evidence: the last report of what the policies have measured; empty before the first.
    """

    def __init__(
        self, raw_parameters: Mapping[str, Mapping[str, Any]], primary: str | None
    ) -> None:
        self.raw_parameters: Mapping[str, Mapping[str, Any]] = dict(raw_parameters)
        self.evidence: Mapping[str, Any] = {}
        self._primary = primary

    def check(self, name: str, raw: Mapping[str, Any], specs: Sequence[ProposerSpec]) -> Any:
        """The parameters of a JSON object. Raises `PolicyError`."""
        return read_policy(name, raw, _ks(specs), self._primary)

    def set(self, name: str, raw: Mapping[str, Any], specs: Sequence[ProposerSpec]) -> PolicyInfo:
        """Keeps parameters that the engine has taken."""
        self.raw_parameters = {**self.raw_parameters, name: dict(raw)}
        return self._info(name, _ks(specs))

    def usable(self, specs: Sequence[ProposerSpec]) -> dict[str, Mapping[str, Any]]:
        """The parameters that a new engine process can start with.

        A policy that names a proposer which was unloaded since starts with its defaults.
        """
        usable = {}
        for name, raw in self.raw_parameters.items():
            try:
                self.check(name, raw, specs)
            except PolicyError as error:
                log.warning("policy %s starts with its defaults: %s", name, error)
            else:
                usable[name] = raw
        return usable

    def infos(self, specs: Sequence[ProposerSpec]) -> tuple[PolicyInfo, ...]:
        """Every policy."""
        ks = _ks(specs)
        return tuple(self._info(name, ks) for name in POLICY_NAMES)

    def record_step(self, report: StepReport) -> None:
        """Keeps the evidence that a step reports, if it does."""
        if report.evidence is not None:
            self.evidence = report.evidence

    def _info(self, name: str, ks: Mapping[str, int]) -> PolicyInfo:
        raw = self.raw_parameters.get(name, {})
        try:
            parameters = to_json(name, read_policy(name, raw, ks, self._primary))
        except PolicyError:  # a proposer that it names was unloaded since
            parameters = dict(raw)
        return PolicyInfo(name, parameters, self.evidence.get("policies", {}).get(name, {}))


def _ks(specs: Sequence[ProposerSpec]) -> dict[str, int]:
    return {spec.name: spec.num_speculative_tokens for spec in specs}

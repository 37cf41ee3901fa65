"""Shows and changes policies and routing rules while requests are served; records each change."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from engine_adapter.policies.parameters import PolicyError
from engine_adapter.seam.errors import EngineError
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import PolicyInfo
from server.control.admin.audit import Audit
from server.control.admin.policy_reader import read_policies, with_defaults
from server.control.method_names import LoadedProposers
from server.control.records import Intent, PolicyRecord, PolicyStatus
from server.control.routing.router import Router
from server.control.routing.rule_reader import read_rules
from server.control.types import SERVER, Caller, PolicyOutcome
from server.errors import AuditUnavailable
from server.telemetry.metrics import Metrics

WHAT = "spec_policy"
"""What the audit calls a change of policies or rules."""


class _Start:
    """When a change began: Unix time in seconds, and the milliseconds since."""

    def __init__(self) -> None:
        self.when, self._counter = time.time(), time.perf_counter()

    @property
    def took_ms(self) -> float:
        return round((time.perf_counter() - self._counter) * 1e3, 3)


class PolicyAdmin:
    """Changes parameters of policies and routing rules, one change at a time.

    Args:
        loaded_proposers: returns the proposers that are loaded at the time of the call.
        api_key_names: returns the names that rules may match at the time of the call.
    """

    def __init__(
        self,
        engine: Engine,
        router: Router,
        loaded_proposers: Callable[[], LoadedProposers],
        api_key_names: Callable[[], Collection[str]],
        metrics: Metrics,
        audit: Audit,
    ) -> None:
        self._engine = engine
        self._router = router
        self._loaded_proposers = loaded_proposers
        self._api_key_names = api_key_names
        self._metrics = metrics
        self._audit = audit
        self._changing = asyncio.Lock()

    def statuses(self) -> tuple[PolicyStatus, ...]:
        """Every policy."""
        return tuple(self._status(info) for info in self._engine.policies)

    def status(self, name: str) -> PolicyStatus | None:
        """The policy `name`; `None` if no policy has this name."""
        return next((self._status(i) for i in self._engine.policies if i.name == name), None)

    def _status(self, info: PolicyInfo) -> PolicyStatus:
        activity = self._metrics.policies.activity(info.name)
        return PolicyStatus(
            info.name,
            dict(info.parameters),
            for_people(info.state),
            activity.suspended,
            activity.decisions,
        )

    def check(self, policies: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Policy -> parameters, by the policies' own names. Raises `PolicyError`."""
        return read_policies(policies, self._loaded_proposers())

    def parameters(self, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """The parameters that these policies have now."""
        return {info.name: info.parameters for info in self._engine.policies if info.name in names}

    async def change(
        self,
        policies: Mapping[str, Any] | None,
        rules: Sequence[Any] | None,
        reason: str | None = None,
        caller: Caller = SERVER,
        *,
        unless_in_force: bool = False,
    ) -> None:
        """Replaces what is given: all, or nothing. Continues if its caller is cancelled.

        Args:
            policies: policy -> its new parameters; the others of a policy get their defaults.
            rules: all routing rules.
            unless_in_force: leave out policies that have these parameters already.

        Raises:
            PolicyError, RuleError: a field cannot work; nothing changed and nothing is recorded.
            EngineError: the engine failed; the old parameters and rules stay.
            AuditUnavailable: its record is required and cannot be written; nothing changed.
        """
        work = self._change(policies, rules, reason, caller, unless_in_force)
        await asyncio.shield(asyncio.create_task(work))

    async def _change(
        self,
        policies: Mapping[str, Any] | None,
        rules: Sequence[Any] | None,
        reason: str | None,
        caller: Caller,
        unless_in_force: bool,
    ) -> None:
        async with self._changing:
            if unless_in_force and not (policies := self._not_in_force(policies or {})):
                return
            await self._make(policies, rules, reason, caller)

    def _not_in_force(self, policies: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        loaded, checked_policies = self._loaded_proposers(), self.check(policies)
        current = self.parameters(checked_policies)
        return {
            n: p
            for n, p in checked_policies.items()
            if with_defaults(n, p, loaded) != current.get(n)
        }

    async def _make(
        self,
        policies: Mapping[str, Any] | None,
        rules: Sequence[Any] | None,
        reason: str | None,
        caller: Caller,
    ) -> None:
        """Long because the intent, the change and its record belong to one outcome."""
        start = _Start()
        loaded = self._loaded_proposers()
        new_policies = read_policies(policies or {}, loaded)
        names = self._api_key_names()
        new_rules = None if rules is None else read_rules(rules, loaded, names)
        shown_policies = None if policies is None else dict(new_policies)
        shown_rules = None if new_rules is None else [dict(r.source) for r in new_rules]
        outcome, fault = PolicyOutcome.CHANGED, None
        try:
            change = {"policies": shown_policies, "rules": shown_rules}
            who, peer = caller.who, caller.peer
            await self._audit.intended(Intent(start.when, who, peer, WHAT, change, reason))
            await self._set_all(new_policies)
            if new_rules is not None:
                self._router.replace(new_rules)
        except AuditUnavailable as error:
            outcome, fault = PolicyOutcome.REFUSED, str(error)
            raise
        except (PolicyError, EngineError) as error:
            outcome, fault = PolicyOutcome.FAILED, str(error)
            raise
        finally:
            record = PolicyRecord(
                when=start.when,
                who=caller.who,
                peer=caller.peer,
                what=WHAT,
                policies=shown_policies,
                rules=shown_rules,
                warnings=list(self._router.warnings),
                reason=reason,
                outcome=outcome,
                error=fault,
                took_ms=start.took_ms,
            )
            self._audit.add(record)

    async def _set_all(self, new_policies: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets the policies one after the other; takes them back if one fails."""
        old_policies = {info.name: info.parameters for info in self._engine.policies}
        set_names = []
        try:
            for name, parameters in new_policies.items():
                await self._engine.set_policy(name, parameters)
                set_names.append(name)
        except (PolicyError, EngineError):
            for name in set_names:
                with suppress(PolicyError, EngineError):
                    await self._engine.set_policy(name, old_policies[name])
            raise


def for_people(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence as JSON can have it, without what only another engine process can read."""
    return {
        name: _json_value(value)
        for name, value in evidence.items()
        if name not in ("state", "policies")
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return for_people(value)
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Policies and routing rules: show them, change them, and explain a decision."""

from fastapi import APIRouter, Request

from engine_adapter.policies.parameters import PolicyError
from server.contract.answers import answers
from server.control.admin.policy_admin import for_people
from server.control.routing.rule_reader import RuleError
from server.errors import InvalidField
from server.http.auth import caller
from server.openai.explain import explain as explain_request
from server.schema.policy import (
    ExplainRequest,
    ExplainResponse,
    PolicyRequest,
    PolicyResponse,
    RoutingRule,
)
from server.state import ReadyRuntime, Runtime, StartedRuntime
from server.telemetry.rolling_stats import WINDOW_S

router = APIRouter(tags=["Speculation"])


@router.get("/v1/spec_policy", operation_id="get_spec_policy")
async def spec_policy(runtime: StartedRuntime) -> PolicyResponse:
    """The policies, the routing rules, and what has been measured."""
    return _response(runtime)


@router.put("/v1/spec_policy", responses=answers(errors={503: "audit_unavailable"}))
async def change_spec_policy(
    request: Request, body: PolicyRequest, runtime: ReadyRuntime
) -> PolicyResponse:
    """Replaces parameters of policies, or the routing rules, from the next step on."""
    if body.policies is None and body.rules is None:
        message = "policies or rules is required."
        raise InvalidField("policies", message, "missing_required_parameter")
    asker = caller(request)
    try:
        await runtime.policy_admin.change(body.policies, body.rules, body.reason, asker)
    except PolicyError as error:
        param = f"policies.{error.field}"
        raise InvalidField(param, f"{param}: {error.message}") from None
    except RuleError as error:
        raise InvalidField(error.field, str(error), error.code) from None
    return _response(runtime)


@router.post("/v1/explain", responses=answers(errors={404: "model_not_found"}))
async def explain(body: ExplainRequest, runtime: ReadyRuntime) -> ExplainResponse:
    """The method that a request would get now, and why; nothing is generated."""
    return await explain_request(runtime, body)


def _response(runtime: Runtime) -> PolicyResponse:
    active = runtime.policy_admin.status(runtime.switcher.active.name)
    rules = []
    for rule in runtime.router.rules:
        overlap, answers = runtime.router.measured_overlap(rule.name)
        rules.append(
            RoutingRule(
                name=rule.name,
                match=dict(rule.source.get("match", {})),
                use=dict(rule.source["use"]),
                overlap=overlap,
                answers=answers,
            )
        )
    return PolicyResponse(
        active=None if active is None else active.name,
        window_s=WINDOW_S,
        policies=list(runtime.policy_admin.statuses()),
        rules=rules,
        warnings=list(runtime.router.warnings),
        evidence=for_people(runtime.engine.evidence),
        changes=list(runtime.audit.policy_changes),
    )

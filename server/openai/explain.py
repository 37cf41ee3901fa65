"""Says which spec method a request would get, and why, without generating."""

from dataclasses import asdict

from server.control.switching.selection import Selection
from server.control.types import SelectedBy
from server.openai.chat import prepare_chat
from server.openai.completions import prepare_completion
from server.openai.request import Origin, choose
from server.schema.policy import ExplainRequest, ExplainResponse, RuleVerdict
from server.state import Runtime


async def explain(runtime: Runtime, body: ExplainRequest) -> ExplainResponse:
    """What the body's request would get now. Counts nothing. Raises `ApiError` as the request."""
    if body.chat is not None:
        prepared = await prepare_chat(runtime, body.chat)
    else:
        assert body.completion is not None
        prepared = await prepare_completion(runtime, body.completion)
    headers = {name.lower(): value for name, value in (body.headers or {}).items()}
    origin = Origin(headers, body.api_key)
    selection, _ = choose(runtime, prepared, origin)
    request = prepared.traits(origin)
    return ExplainResponse(
        spec_method=selection.name,
        num_speculative_tokens=selection.k,
        selected_by=selection.selected_by,
        rule=selection.rule,
        why=_why(runtime, selection),
        request={k: v for k, v in asdict(request).items() if k != "headers"},
        rules=[
            RuleVerdict(rule=verdict.rule, matches=verdict.matches, why=verdict.why)
            for verdict in runtime.router.verdicts(request)
        ],
        policy=runtime.policy_admin.status(selection.name),
    )


def _why(runtime: Runtime, selection: Selection) -> str:
    if selection.selected_by is SelectedBy.RULE:
        return f"the rule {selection.rule!r} is the first that matches and can be used"
    if selection.selected_by is SelectedBy.REQUEST and selection.rule is not None:
        return f"the request caps the method of the rule {selection.rule!r}"
    if selection.selected_by is SelectedBy.REQUEST:
        return "the request decides: it has a method, a cap or a prediction"
    if runtime.router.rules:
        return "no rule decides, so the request has the active method"
    return "there are no rules, so the request has the active method"

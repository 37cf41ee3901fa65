"""The routes that mean the whole fleet where those of one server mean one replica.

They come before the routes of `server.routes`, so that a request for `/v1/switch_spec_method` at
any replica is a switch of the fleet.
"""

import asyncio
from dataclasses import asdict
from typing import Any, Protocol

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import exposition

from server.control.records import SpecMethodBody
from server.errors import ApiError, InvalidField, Unavailable
from server.fleet.replica import FleetOutcome, FleetReport, Order, ReplicaOutcome
from server.http.auth import FLEET_PATH, caller
from server.http.event_stream import until_disconnect
from server.ray_serve.attendance import FleetLost
from server.ray_serve.fleet import FleetStatus
from server.ray_serve.fleet_metrics import with_replicas
from server.schema.admin import SwitchRequest
from server.schema.policy import PolicyRequest

ONE_REPLICA = (
    "/v1/load_proposer",
    "/v1/unload_proposer",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/prepare_switch",
    "/v1/commit_switch",
    "/v1/rollback_switch",
)
"""Paths whose request would reach the one replica that Serve chooses, and no other."""

_STATUS: dict[str | None, int] = {
    # A field's value that has no code of its own.
    None: 400,
    "unknown_mode": 400,
    "proposer_ambiguous": 400,
    "num_speculative_tokens_too_large": 400,
    "missing_required_parameter": 400,
    "unknown_parameter": 400,
    "proposer_not_found": 404,
    "proposer_quarantined": 409,
    "switch_in_progress": 409,
    "not_prepared": 409,
    "stale_generation": 409,
    "drain_timeout": 504,
    "stopping": 503,
    "engine_dead": 503,
    "engine_not_ready": 503,
}
"""The code of a replica's refusal -> the status of the answer; 500 for any other."""

log = structlog.get_logger(__name__)


class FleetOfIngress(Protocol):
    """The fleet, as the routes reach it: see `Fleet`. Every method may raise `FleetLost`."""

    async def switch(self, order: Order) -> FleetReport | None:
        """See `Fleet.switch`."""
        ...

    async def set_policies(self, order: Order) -> FleetReport | None:
        """See `Fleet.set_policies`."""
        ...

    async def status(self) -> FleetStatus:
        """See `Fleet.status`."""
        ...

    async def metrics(self) -> dict[str, str]:
        """See `Fleet.metrics`."""
        ...


def serve_fleet(app: FastAPI, fleet: FleetOfIngress) -> None:
    """Puts the fleet's routes before those of one server."""
    routes = app.router.routes
    of_one_server = list(routes)
    app.include_router(_router(fleet))
    # The first route that matches answers.
    routes[:] = [*routes[len(of_one_server) :], *of_one_server]


def _router(fleet: FleetOfIngress) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    _add_changes(router, fleet)
    _add_views(router, fleet)
    for path in ONE_REPLICA:
        router.add_api_route(path, _refuse, methods=["POST"])
    return router


def _add_changes(router: APIRouter, fleet: FleetOfIngress) -> None:
    @router.post("/v1/switch_spec_method")
    async def switch_spec_method(request: Request, body: SwitchRequest) -> dict[str, Any]:
        """Makes another proposer, a policy, or plain decoding the method of every replica."""
        asked = body.method_request()
        after_timeout = body.after_timeout()
        order = Order(
            asked.proposer,
            asked.num_speculative_tokens,
            body.mode,
            body.timeout_s,
            after_timeout,
            body.reason,
        )
        return switched(await _changed(request, fleet.switch(order)), body.mode)

    @router.put("/v1/spec_policy")
    async def change_spec_policy(request: Request, body: PolicyRequest) -> dict[str, Any]:
        """Replaces parameters of policies at every replica."""
        if body.rules is not None:
            message = "rules are set in the arguments of the deployment, not while it serves."
            raise InvalidField("rules", message)
        if body.policies is None:
            raise InvalidField("policies", "policies is required.", "missing_required_parameter")
        order = Order(None, mode="new_requests", reason=body.reason, policies=body.policies)
        report = await _changed(request, fleet.set_policies(order))
        return {"policies": body.policies, "fleet": asdict(report)}


def _add_views(router: APIRouter, fleet: FleetOfIngress) -> None:
    @router.get(FLEET_PATH)
    async def show_fleet() -> dict[str, Any]:
        """What is in force, and what every replica has."""
        return asdict(await _known(fleet.status()))

    @router.get("/metrics")
    async def metrics() -> Response:
        """The series of all replicas, each with a label `replica`."""
        texts = await _known(fleet.metrics())
        # In a thread: it takes as long as the texts of all replicas are large.
        body = await asyncio.to_thread(with_replicas, texts)
        return Response(body, media_type=exposition.CONTENT_TYPE_PLAIN_0_0_4)


def switched(report: FleetReport, mode: str) -> dict[str, Any]:
    """The answer to a switch: that of one server, for the fleet, and the fleet's report."""
    first = report.replicas[0]
    return {
        "previous": _method(first.previous),
        "active": _method(first.active),
        "mode": mode,
        "generation": report.fleet_generation,
        "fleet_generation": report.fleet_generation,
        "in_flight": sum(replica.in_flight or 0 for replica in report.replicas),
        "aborted": sum(replica.aborted or 0 for replica in report.replicas),
        "waited_ms": report.took_ms,
        "fleet": asdict(report),
    }


def _method(method: SpecMethodBody | None) -> dict[str, Any] | None:
    return None if method is None else asdict(method)


async def _changed(request: Request, change: Any) -> FleetReport:
    """The report of a change that every replica has made. Raises `ApiError` for any other."""
    asker = caller(request)
    report: FleetReport | None = await _known(until_disconnect(request.receive, change))
    if report is None:
        message = "Another switch of the fleet has not ended yet; nothing was changed."
        raise ApiError(409, message, code="switch_in_progress")
    log.info("fleet_switch", who=asker.who, peer=asker.peer, outcome=report.outcome)
    if report.outcome is FleetOutcome.SWITCHED:
        return report
    raise failed(report)


def failed(report: FleetReport) -> ApiError:
    """The error of a switch that the fleet has not made."""
    refused = [r.code for r in report.replicas if r.outcome is ReplicaOutcome.REFUSED]
    code = refused[0] if refused else "fleet_incomplete"
    unknown = [
        f"{r.replica} ({r.error})" for r in report.replicas if r.outcome is ReplicaOutcome.UNKNOWN
    ]
    end = {
        FleetOutcome.UNCHANGED: "nothing was changed at any replica",
        FleetOutcome.ROLLED_BACK: "every replica has what it had before",
        FleetOutcome.PARTIAL: f"not known of {', '.join(unknown)}; the next switch heals them",
        FleetOutcome.SWITCHED: "",
    }[report.outcome]
    status = _STATUS.get(code, 500) if refused else 503
    kind = "server_error" if status >= 500 else "invalid_request_error"
    message = f"{report.error}; {end}."
    return ApiError(status, message, type=kind, code=code)


async def _known(answer: Any) -> Any:
    """What the fleet answers. Raises `Unavailable` while it does not."""
    try:
        return await answer
    except FleetLost:
        message = "The fleet's actor does not answer; what it was told may have been done."
        raise Unavailable(message, "fleet_unavailable", 1) from None


async def _refuse(request: Request) -> None:
    message = (
        f"{request.url.path} would change one replica only; change the arguments of the "
        "deployment, which Serve gives to all."
    )
    raise ApiError(409, message, code="needs_restart")

"""The routes that mean the whole fleet where those of one server mean one replica.

They come before the routes of `server.routes`, so that a request for `/v1/switch_spec_method` at
any replica is a switch of the fleet.
"""

import asyncio
from dataclasses import asdict
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import exposition

from server.errors import ApiError, InvalidField
from server.fleet.coordinator import FleetOutcome, FleetReport, ReplicaOutcome, switch_fleet
from server.fleet.desired import rank_of
from server.fleet.replica import FleetSwitch, Way
from server.http.auth import FLEET_PATH, caller
from server.ray_serve.fleet import ServeFleet
from server.ray_serve.fleet_metrics import with_replicas
from server.schema.admin import SwitchRequest
from server.schema.policy import PolicyRequest

ONE_REPLICA = (
    "/v1/load_proposer",
    "/v1/unload_proposer",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/check_switch",
    "/v1/fleet_method",
    "/reset_prefix_cache",
)
"""Paths whose request would reach the one replica that Serve chooses, and no other."""

log = structlog.get_logger(__name__)


def serve_fleet(app: FastAPI, fleet: ServeFleet) -> None:
    """Puts the fleet's routes before those of one server."""
    routes = app.router.routes
    of_one_server = list(routes)
    app.include_router(_router(fleet))
    # The first route that matches answers.
    routes[:] = [*routes[len(of_one_server) :], *of_one_server]


def _router(fleet: ServeFleet) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    _add_changes(router, fleet)
    _add_views(router, fleet)
    for path in ONE_REPLICA:
        router.add_api_route(path, _refuse, methods=["POST", "PUT"])
    return router


def _add_changes(router: APIRouter, fleet: ServeFleet) -> None:
    @router.post("/v1/switch_spec_method")
    async def switch_spec_method(request: Request, body: SwitchRequest) -> dict[str, Any]:
        """Makes another proposer, a policy, or plain decoding the method of every replica."""
        method = body.method_request()
        fleet_switch = FleetSwitch(method.proposer, method.num_speculative_tokens, way=body.way())
        report = await _switched(request, fleet, fleet_switch)
        first_report = asdict(report.replicas[0])
        switches = [
            replica_report.switch
            for replica_report in report.replicas
            if replica_report.switch is not None
        ]
        return {
            "previous": first_report["previous"],
            "active": first_report["active"],
            "mode": body.mode,
            "generation": first_report["fleet_generation"],
            "fleet_generation": first_report["fleet_generation"],
            "in_flight": sum(switch.in_flight for switch in switches),
            "aborted": sum(switch.aborted for switch in switches),
            "waited_ms": report.took_ms,
            "fleet": asdict(report),
        }

    @router.put("/v1/spec_policy")
    async def change_spec_policy(request: Request, body: PolicyRequest) -> dict[str, Any]:
        """Replaces parameters of policies at every replica."""
        if body.rules is not None:
            message = "rules are set in the arguments of the deployment, not while it serves."
            raise InvalidField("rules", message)
        if body.policies is None:
            raise InvalidField("policies", "policies is required.", "missing_required_parameter")
        # With the fleet's method; before its first switch, with that of this replica.
        method = await fleet.desired() or fleet.member.state().active
        k = method.num_speculative_tokens or None
        fleet_switch = FleetSwitch(method.spec_method, k, body.policies, Way(reason=body.reason))
        report = await _switched(request, fleet, fleet_switch)
        return {"policies": body.policies, "fleet": asdict(report)}


def _add_views(router: APIRouter, fleet: ServeFleet) -> None:
    @router.get(FLEET_PATH)
    async def show_fleet() -> dict[str, Any]:
        """What all replicas should have, and what each has."""
        states = await fleet.states()
        desired = max((state.fleet.desired for state in states.values()), key=rank_of)
        return {
            "desired": None if desired is None else asdict(desired),
            "replicas": {name: asdict(state) for name, state in states.items()},
        }

    @router.get("/metrics")
    async def metrics() -> Response:
        """The series of all replicas, each with a label `replica`."""
        # In a thread: it takes as long as the texts of all replicas are large.
        body = await asyncio.to_thread(with_replicas, await fleet.metrics())
        return Response(body, media_type=exposition.CONTENT_TYPE_PLAIN_0_0_4)


async def _switched(request: Request, fleet: ServeFleet, fleet_switch: FleetSwitch) -> FleetReport:
    """The report of a switch that every replica has made. Raises `ApiError` for any other."""
    report, asker = await switch_fleet(fleet, fleet_switch), caller(request)
    log.info("fleet_switch", who=asker.who, peer=asker.peer, outcome=report.outcome)
    if report.outcome is FleetOutcome.SWITCHED:
        return report
    if report.obstacle is not None:
        message = f"{report.obstacle.message}; nothing was changed at any replica."
        status, code = report.obstacle.status, report.obstacle.code
    elif report.named(ReplicaOutcome.SUPERSEDED):
        status, code = 409, "switch_in_progress"
        message = "Another switch of the fleet came meanwhile; that one is in force."
    else:
        status, code = 503, "fleet_incomplete"
        why = [f"{r.replica}: {r.obstacle.message}" for r in report.replicas if r.obstacle]
        message = (
            f"All replicas have it but these, which follow as soon as they can: {'; '.join(why)}"
        )
    kind = "server_error" if status >= 500 else "invalid_request_error"
    raise ApiError(status, message, type=kind, code=code)


async def _refuse(request: Request) -> None:
    message = (
        f"{request.url.path} would change one replica only; change the arguments of the "
        "deployment, which Serve gives to all."
    )
    raise ApiError(409, message, code="needs_restart")

"""The two calls of a fleet switch: check, and set."""

from fastapi import APIRouter, Request

from server.fleet.replica import Checked, ReplicaState
from server.http.auth import caller
from server.schema.fleet import CheckRequest, FleetMethodRequest
from server.state import StartedRuntime

router = APIRouter(tags=["Speculation"])


@router.post("/v1/check_switch")
async def check_switch(body: CheckRequest, runtime: StartedRuntime) -> Checked:
    """Says what a switch of the fleet would do at this server, and changes nothing."""
    return runtime.fleet.check(body.fleet_switch())


@router.put("/v1/fleet_method")
async def set_fleet_method(
    request: Request, body: FleetMethodRequest, runtime: StartedRuntime
) -> ReplicaState:
    """Sets what every server of the fleet should have, unless this one knows a later state.

    The server goes to that state whether or not the caller waits, and tries until it has it.
    """
    return await runtime.fleet.set(body.desired(), body.way(), caller(request))

"""Reasons for which a switch does not happen, and what its client is told.

The method is the old one when one is raised.
"""

from engine_adapter.policies.parameters import PolicyError
from server.control.method_names import SelectionError
from server.errors import ApiError, AuditUnavailable, InvalidField, NotFound, Stopping, to_api_error


class SwitchInProgress(Exception):
    """Another switch has not ended yet."""

    def __init__(self) -> None:
        super().__init__("another switch has not ended yet")


class ProposerQuarantined(Exception):
    """The proposer is quarantined and would draft nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"proposer {name!r} is quarantined; unload it and load it again")


class DrainTimeout(Exception):
    """Admitted requests did not end in time.

    Attributes:
        in_flight: how many were left.
        aborted: how many of the admitted requests the drain has aborted.
    """

    def __init__(self, timeout_s: float, in_flight: int, aborted: int = 0) -> None:
        requests = "1 admitted request" if in_flight == 1 else f"{in_flight} admitted requests"
        message = f"{requests} did not end within {timeout_s:g} s"
        if aborted:
            aborted_requests = "1 request" if aborted == 1 else f"{aborted} requests"
            message += f", nor after the drain had aborted {aborted_requests}"
        super().__init__(message)
        self.in_flight = in_flight
        self.aborted = aborted


class DrainStopped(Exception):
    """The server stops, so the drain was abandoned."""

    def __init__(self) -> None:
        super().__init__("the server is stopping")


SWITCH_ERRORS = (
    SelectionError,
    PolicyError,
    SwitchInProgress,
    ProposerQuarantined,
    DrainTimeout,
    DrainStopped,
    AuditUnavailable,
)
"""What a switch raises besides an `EngineError`."""


def to_refusal(error: BaseException) -> ApiError:
    """The error that a client gets for a switch that raised `error`."""
    match error:
        case SelectionError():
            kind = NotFound if error.code == "proposer_not_found" else InvalidField
            return kind(message=error.message, param=error.param, code=error.code)
        case PolicyError():
            param = f"policies.{error.field}"
            return InvalidField(param, f"{param}: {error.message}")
        case ProposerQuarantined():
            return ApiError(409, f"{error}.", code="proposer_quarantined")
        case SwitchInProgress():
            message = "Another switch has not ended yet; nothing was changed."
            return ApiError(409, message, code="switch_in_progress")
        case DrainTimeout():
            message = f"{error}; the method was not changed."
            return ApiError(504, message, type="server_error", code="drain_timeout")
        case DrainStopped():
            return Stopping("The server is stopping; nothing was changed.")
        case _:
            return to_api_error(error)

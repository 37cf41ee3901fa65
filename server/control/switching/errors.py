"""Reasons for which a switch does not happen. The method is the old one when one is raised."""


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

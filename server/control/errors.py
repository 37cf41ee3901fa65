"""Reasons for which a switch does not happen. The method is the old one when one is raised."""


class SwitchInProgress(Exception):
    """Another switch has not ended yet."""

    def __init__(self) -> None:
        super().__init__("another switch has not ended yet")


class NotPrepared(Exception):
    """The server is not reserved for the fleet switch: its lease has ended, or it never was.

    Also that of a commit that was rolled back or abandoned.
    """

    def __init__(self) -> None:
        super().__init__(
            "the server is not reserved for this fleet switch, or its reservation has ended"
        )


class StaleGeneration(Exception):
    """The number of a fleet switch is not above the one that the server has."""

    def __init__(self, generation: int, own: int) -> None:
        super().__init__(f"fleet generation {generation} is not above {own}, which is in force")


class GivenUp(Exception):
    """A fleet switch ended before the server was told to make it."""

    def __init__(self, lease_s: float | None = None) -> None:
        super().__init__(
            "the fleet switch was given up"
            if lease_s is None
            else f"no commit of the fleet switch came within {lease_s:g} s"
        )


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
            ended = "1 request" if aborted == 1 else f"{aborted} requests"
            message += f", nor after the drain had aborted {ended}"
        super().__init__(message)
        self.in_flight = in_flight
        self.aborted = aborted


class DrainStopped(Exception):
    """The server stops, so the drain was abandoned."""

    def __init__(self) -> None:
        super().__init__("the server is stopping")

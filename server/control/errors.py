"""Reasons for which a switch does not happen. Nothing has changed when one of them is raised."""


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
    """

    def __init__(self, timeout_s: float, in_flight: int) -> None:
        super().__init__(f"{in_flight} admitted requests did not end within {timeout_s:g} s")
        self.in_flight = in_flight


class DrainStopped(Exception):
    """The server stops, so the drain was abandoned."""

    def __init__(self) -> None:
        super().__init__("the server is stopping")

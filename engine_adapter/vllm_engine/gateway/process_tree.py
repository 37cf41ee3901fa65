"""A process of this machine and its children, seen from outside, and killed."""

from contextlib import suppress
from dataclasses import dataclass

import psutil

_STOPPED = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}


@dataclass(frozen=True, slots=True)
class Sight:
    """A process and its children at one time.

    Attributes:
        cpu_s: the CPU time that they have used, in seconds.
        stopped: one of them was stopped by a signal or a debugger.
        reads: one of them waits for a disk.
    """

    cpu_s: float
    stopped: bool
    reads: bool


class ProcessTree:
    """A process, by its id, and the children that it has at the time of a call."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def look(self) -> Sight | None:
        """What they do now; `None` if that cannot be seen, as when the process has ended."""
        cpu_s, states = 0.0, set()
        try:
            for one in self._members():
                times = one.cpu_times()
                # Those of children count from their end on: a compiler's, for example.
                cpu_s += times.user + times.system + times.children_user + times.children_system
                states.add(one.status())
        except (psutil.Error, OSError):
            # psutil lets an error of the system through: no file can be opened, for example.
            return None
        return Sight(cpu_s, bool(states & _STOPPED), psutil.STATUS_DISK_SLEEP in states)

    def kill(self) -> None:
        """Ends them at once, stopped ones too."""
        with suppress(psutil.NoSuchProcess):
            for one in self._members():
                with suppress(psutil.NoSuchProcess):
                    one.kill()

    def _members(self) -> list[psutil.Process]:
        process = psutil.Process(self._pid)
        return [process, *process.children(recursive=True)]

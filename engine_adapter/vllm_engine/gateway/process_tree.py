"""Processes of this machine and their children, seen from outside, and killed."""

from contextlib import suppress
from dataclasses import dataclass

import psutil

_STOPPED = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}


@dataclass(frozen=True, slots=True)
class Sight:
    """Processes and their children at one time.

    Attributes:
        cpu_s: the CPU time that they have used, in seconds.
        stopped: one of them was stopped by a signal or a debugger.
        reads: one of them waits for a disk.
    """

    cpu_s: float
    stopped: bool
    reads: bool


class ProcessTree:
    """Processes, by their ids, and the children that they have at the time of a call.

    Args:
        complete: no process that works with them is on another machine.
    """

    def __init__(self, *pids: int, complete: bool = True) -> None:
        self._pids = pids
        self._complete = complete

    def look(self) -> Sight | None:
        """What they do now; `None` if that cannot be seen, as when one has ended."""
        if not self._complete:
            return None
        cpu_s, states = 0.0, set()
        try:
            for process in (process for pid in self._pids for process in _members(pid)):
                times = process.cpu_times()
                # Those of children count from their end on: a compiler's, for example.
                cpu_s += times.user + times.system + times.children_user + times.children_system
                states.add(process.status())
        except (psutil.Error, OSError):
            # psutil lets an error of the system through: no file can be opened, for example.
            return None
        return Sight(cpu_s, bool(states & _STOPPED), psutil.STATUS_DISK_SLEEP in states)

    def kill(self) -> None:
        """Ends them at once, stopped ones too."""
        for pid in self._pids:
            with suppress(psutil.NoSuchProcess):
                for process in _members(pid):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()


def _members(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]

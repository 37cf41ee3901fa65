"""`specgate` with a profiler that runs from SIGUSR1 to SIGUSR2; it writes the profile at its end.

Usage: python -m benchmarks.gateway.profiled FILE ARGUMENT...
"""

import cProfile
import signal
import sys
import time

from server.cli import main as specgate

BEGIN, END = signal.SIGUSR1, signal.SIGUSR2


def main() -> None:
    """Runs the command."""
    path, *arguments = sys.argv[1:]
    profiler = cProfile.Profile(time.thread_time)
    signal.signal(BEGIN, lambda *_: profiler.enable())
    signal.signal(END, lambda *_: profiler.disable())
    try:
        sys.exit(specgate(arguments))
    finally:
        profiler.dump_stats(path)


if __name__ == "__main__":
    main()

"""File descriptors of this process: each connection, file and pipe takes one."""

import errno
import os
import resource

MAX_CONNECTIONS = 10_000
"""The default of `--max-connections` where descriptors allow it.

Each takes some 20 kB, and one with TLS some 60 kB.
"""

ROOM = 256
"""Descriptors that are left to files, to the engine and to refusals."""

SPARE = 32
"""Connections above the limit that are held for as long as a refusal takes."""

OWN = 64
"""Descriptors that the server opens for itself: files, pipes and the engine's sockets.

They are some 30 with vLLM, of which a loading of files or a restart of the engine needs more for a
while.
"""


def raise_limit() -> int:
    """Raises the soft limit of this process, and of those that it starts, to the hard one.

    Returns the limit of descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # macOS reports a hard limit that it does not accept.
        return soft
    return hard


def default_connections(limit: int) -> int:
    """The most connections that a limit of descriptors leaves room for: at least a half of it."""
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, max(limit - ROOM, limit // 2)))


def needed(connections: int) -> int:
    """The limit of descriptors with which so many connections can be open at a time.

    Besides those and the spare ones, there are the descriptors that this process has already, such
    as those that it inherited, and those that the server opens for itself.
    """
    num_inherited = len(os.listdir("/dev/fd"))
    return connections + SPARE + num_inherited + OWN


def exhausted() -> bool:
    """Whether no descriptor is free, so that nothing can be opened and no connection accepted."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False

"""The limit of descriptors: raised at start, and what it leaves for connections."""

import resource
import subprocess
import sys

import pytest

from server.http.descriptors import MAX_CONNECTIONS, default_connections, exhausted

LIMITED = """
import os, resource
from server.http import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
assert descriptors.raise_limit() == 128
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, 128)
assert descriptors.raise_limit() == 128
assert not descriptors.exhausted()
taken = []
try:
    while True:
        taken.append(os.dup(1))
except OSError:
    pass
assert descriptors.exhausted()
os.close(taken.pop())
assert not descriptors.exhausted()
needed = descriptors.needed(10)
os.close(taken.pop())
assert descriptors.needed(10) == needed - 1
assert needed >= len(taken) + 10 + descriptors.SPARE + descriptors.OWN
"""


EXHAUSTED = """
import asyncio, os, resource, socket
import uvloop

class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()

def ask(address):
    with socket.create_connection(address, 5) as client:
        return client.recv(5)

async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    await asyncio.get_running_loop().create_server(Greeter, sock=listener)
    assert await asyncio.to_thread(ask, address) == b"hello"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # One with which libuv can still refuse, and one with which it has no descriptor of its own.
    for limit in (len(os.listdir("/proc/self/fd")), 4):
        client = socket.socket()
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        client.connect_ex(address)
        await asyncio.sleep(0.1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.close()
        assert await asyncio.to_thread(ask, address) == b"hello", limit

uvloop.run(main())
"""


@pytest.mark.parametrize(
    ("limit", "connections"),
    [
        (resource.RLIM_INFINITY, MAX_CONNECTIONS),
        (1_048_576, MAX_CONNECTIONS),
        (4096, 3840),
        (1024, 768),
        (256, 128),
        (1, 1),
    ],
)
def test_room_is_left_for_files_and_the_engine(limit: int, connections: int) -> None:
    assert default_connections(limit) == connections


def test_descriptors_are_free_here() -> None:
    assert not exhausted()


def test_the_limit_is_raised_and_its_end_is_seen() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_port_stays_open_when_no_descriptor_is_free() -> None:
    done = subprocess.run([sys.executable, "-c", EXHAUSTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

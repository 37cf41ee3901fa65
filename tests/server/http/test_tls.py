"""A port that speaks TLS, on both event loops: what counts before a handshake is complete."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import httpx
import pytest
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from server.http import tls
from server.http.connection import Connection
from server.http.connections import Connections
from server.http.descriptors import SPARE
from server.http.tls import TlsServer
from server.settings.http_settings import HttpSettings
from server.telemetry.connection_metrics import ConnectionMetrics
from server.telemetry.metric_maker import MetricMaker
from tests.certificates import Certificate
from tests.server.gateway import eventually
from tests.server.http.wire import answer, slow

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function on each kind of event loop."""

    def run_one(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run_one


class Port:
    """A port that speaks TLS, and its clients."""

    def __init__(
        self, certificate: Certificate, limit: int, app: Any = answer, **settings: Any
    ) -> None:
        self.registry = CollectorRegistry()
        self.connections = Connections(
            HttpSettings(**settings), limit, ConnectionMetrics(MetricMaker(self.registry))
        )
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
        config.load()
        self.state = ServerState()
        new = partial(
            Connection, self.connections, config=config, server_state=self.state, app_state={}
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.number = self.listener.getsockname()[1]
        self.server = TlsServer(certificate.for_server(), self.connections, self.listener, new)
        self._context = certificate.for_client()
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, sent: bytes = b"") -> asyncio.StreamReader:
        """A connection without TLS."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        writer.write(sent)
        self.writers.append(writer)
        return reader

    async def handshake(self, sent: bytes = b"") -> asyncio.StreamReader:
        """A connection that speaks TLS."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=self._context, server_hostname="localhost"
        )
        self.writers.append(writer)
        writer.write(sent)
        return reader

    async def ask(self) -> bytes:
        """The answer to a probe over TLS."""
        return await asyncio.wait_for((await self.handshake(GET)).read(), 60)

    def closed(self, reason: str) -> float:
        """How many connections the server has closed for a reason."""
        name = "specgate_connections_closed_total"
        return self.registry.get_sample_value(name, {"reason": reason}) or 0

    @property
    def handshakes(self) -> float:
        """Those that are not complete."""
        return self.registry.get_sample_value("specgate_tls_handshakes") or 0


@asynccontextmanager
async def opened(certificate: Certificate, limit: int = 4, **settings: Any) -> AsyncIterator[Port]:
    port = Port(certificate, limit, **settings)
    try:
        yield port
    finally:
        for writer in port.writers:
            writer.transport.abort()
        port.server.close()
        port.listener.close()
        await eventually(lambda: not len(port.connections))


async def ends(reader: asyncio.StreamReader) -> None:
    """The server closes the connection."""
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 60) == b""


def test_silent_connections_leave_their_places_to_clients(
    run: Run, certificate: Certificate
) -> None:
    async def main() -> None:
        async with opened(certificate) as port:
            silent = [await port.connect() for _ in range(40)]
            await eventually(lambda: port.closed("refused") == 36)
            assert port.handshakes == len(port.connections) == 4
            assert b"200 OK" in await port.ask()
            # The oldest has made room for it.
            await ends(silent[36])
            assert port.handshakes == 3
            assert b"200 OK" in await port.ask()

    run(main)


def test_a_probe_is_answered_when_the_places_are_taken_for_good(
    run: Run, certificate: Certificate
) -> None:
    async def main() -> None:
        async with opened(certificate, app=until_told(), limit=2) as port:
            working = [asyncio.create_task(port.ask()) for _ in range(2)]
            await eventually(lambda: len(port.state.tasks) == 2)
            silent = [await port.connect() for _ in range(SPARE + 5)]
            await asyncio.gather(*(ends(reader) for reader in silent[:5]))
            assert port.handshakes == SPARE
            assert b"200 OK" in await port.ask()
            assert not any(task.done() for task in working)
            for task in working:
                task.cancel()

    run(main)


def until_told() -> Any:
    """An application that answers the third request, and not the first two."""
    begun: list[None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(None)
        await (slow if len(begun) <= 2 else answer)(scope, receive, send)

    return app


def test_a_handshake_has_the_time_of_headers(run: Run, certificate: Certificate) -> None:
    async def main() -> None:
        async with opened(certificate, header_timeout_s=0.2) as port:
            await ends(await port.connect())
            # A record of TLS that says it has 512 bytes, and a part of them.
            await ends(await port.connect(b"\x16\x03\x01\x02\x00\x01"))
            assert port.closed("slow_handshake") == 2

    run(main)


def test_what_is_not_tls_is_counted_and_one_line_of_the_log(
    run: Run, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(certificate) as port:
            with capture_logs() as lines:
                for _ in range(20):
                    await ends(await port.connect(b"GET / HTTP/1.1\r\n\r\n"))
                await eventually(lambda: port.closed("bad_handshake") == 20)
            (line,) = lines
            assert (line["reason"], line["error"]) == ("bad_handshake", "HTTP_REQUEST")
            assert line["peer"] == "127.0.0.1"

    with caplog.at_level(logging.WARNING):
        run(main)
    assert caplog.records == []


def test_a_client_that_does_not_trust_the_server_is_told_apart(
    run: Run, certificate: Certificate
) -> None:
    def mistrust(number: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", number)) as connection,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")

    async def main() -> None:
        async with opened(certificate) as port:
            with capture_logs() as lines:
                await asyncio.to_thread(mistrust, port.number)
                await eventually(lambda: port.closed("bad_handshake") == 1)
            assert lines[0]["error"] == "TLSV1_ALERT_UNKNOWN_CA"

    run(main)


def test_a_client_that_leaves_in_its_handshake_leaves_nothing_behind(
    run: Run, certificate: Certificate
) -> None:
    async def main() -> None:
        async with opened(certificate) as port:
            with socket.create_connection(("127.0.0.1", port.number)):
                await eventually(lambda: port.handshakes == 1)
            await eventually(lambda: port.handshakes == len(port.connections) == 0)
            assert port.closed("bad_handshake") == port.closed("slow_handshake") == 0

    run(main)


def test_a_stop_ends_handshakes_and_accepts_no_more(run: Run, certificate: Certificate) -> None:
    async def main() -> None:
        async with opened(certificate) as port:
            waiting = await port.connect()
            await eventually(lambda: port.handshakes == 1)
            port.server.close()
            await ends(waiting)
            await eventually(lambda: port.handshakes == 0)
            assert not port.server.is_serving()

    run(main)


def test_a_port_without_descriptors_is_tried_again(
    run: Run, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Few(socket.socket):
        """A port for which no descriptor is free at first."""

        attempts = 0

        def accept(self) -> Any:
            self.attempts += 1
            if self.attempts < 4:
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    async def main() -> None:
        monkeypatch.setattr(tls, "RETRY_S", 0.01)
        async with opened(certificate) as port:
            port.server.close()
            few = Few(fileno=port.listener.detach())
            new = port.server.new_connection
            port.server = TlsServer(certificate.for_server(), port.connections, few, new)
            port.listener = few
            assert b"200 OK" in await port.ask()
            assert few.attempts >= 4

    run(main)


def test_a_client_that_says_nothing_after_its_handshake_is_idle(
    run: Run, certificate: Certificate
) -> None:
    async def main() -> None:
        async with opened(certificate, idle_timeout_s=30) as port:
            reader = await port.handshake()
            await eventually(lambda: len(port.state.connections) == 1)
            now = asyncio.get_running_loop().time()
            port.connections.check(now + 29)
            assert not reader.at_eof()
            assert len(port.connections) == 1
            port.connections.check(now + 31)
            await ends(reader)
            assert port.closed("idle") == 1

    run(main)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """Streams until the client is gone."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(2000):
        await send({"type": "http.response.body", "body": bytes(32_768), "more_body": True})
        await asyncio.sleep(0)


def test_a_client_that_does_not_read_its_stream_is_aborted(
    run: Run, certificate: Certificate
) -> None:
    async def main() -> None:
        async with opened(certificate, app=endless, max_unsent_bytes=1_000_000) as port:
            reader = await port.handshake(GET)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await eventually(lambda: port.closed("unsent") == 1)
            await eventually(lambda: not len(port.connections))

    run(main)


def test_a_client_keeps_its_connection(run: Run, certificate: Certificate) -> None:
    async def main() -> None:
        async with (
            opened(certificate) as port,
            httpx.AsyncClient(verify=certificate.for_client(), trust_env=False) as client,
        ):
            for _ in range(3):
                response = await client.get(f"https://localhost:{port.number}/")
                assert response.text == "ok"
            assert len(port.connections) == len(port.state.connections) == 1
            assert port.handshakes == 0

    run(main)


def test_openssl_and_curl_can_ask(run: Run, certificate: Certificate) -> None:
    async def main() -> None:
        async with opened(certificate) as port:
            address, trusted = f"localhost:{port.number}", str(certificate.certfile)
            commands = {
                ("openssl", "s_client", "-connect", address, "-CAfile", trusted, "-ign_eof"): GET,
                ("curl", "-sS", "--noproxy", "*", "--cacert", trusted, f"https://{address}/"): b"",
            }
            num_asked = 0
            for command, sent in commands.items():
                pipe = asyncio.subprocess.PIPE
                try:
                    process = await asyncio.create_subprocess_exec(
                        *command, stdin=pipe, stdout=pipe
                    )
                except FileNotFoundError:
                    continue
                output, _ = await asyncio.wait_for(process.communicate(sent), 60)
                assert output.rstrip().endswith((b"ok", b"closed")), output
                assert b"ok" in output
                num_asked += 1
            if not num_asked:
                pytest.skip("neither openssl nor curl is installed")

    run(main)

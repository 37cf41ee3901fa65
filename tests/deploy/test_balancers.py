"""haproxy and nginx, as they are deployed, in front of two servers that answer with their name."""

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.manifests import DEPLOY
from tests.deploy.rehearsal import Balancer, balancing, free_address, haproxy

SESSIONS = 24
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")

needs_haproxy = pytest.mark.skipif(haproxy() is None, reason="haproxy is missing")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is missing")


class Replica:
    """Answers every request with its name, in two parts half a second apart for `/stream`."""

    def __init__(self, name: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.path != "/stream":
                    self._answer(name.encode())
                    return
                self.send_response(200)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for part in (b"3\r\none\r\n", b"0\r\n\r\n"):
                    self.wfile.write(part)
                    self.wfile.flush()
                    time.sleep(0.5)

            def _answer(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def stop(self) -> None:
        """Refuses connections from now on."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def replicas() -> Iterator[dict[str, Replica]]:
    """Two servers; a test may stop them."""
    with ExitStack() as stack:
        servers = {name: Replica(name) for name in ("one", "two")}
        for server in servers.values():
            stack.callback(server.stop)
        yield servers


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "the balancer does not answer"
        time.sleep(0.05)


def ask(url: str, body: dict[str, Any], session: str | None = None) -> str:
    """The name of the server that answers."""
    headers = {} if session is None else {"x-session-id": session}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False)
    assert response.status_code == 200, response.text
    return response.text


def servers_of_a_chat(url: str, number: int, system: bool) -> set[str]:
    """The servers that answer four turns of a growing chat."""
    messages = [{"role": "system", "content": "You are helpful."}] if system else []
    names = set()
    for turn in range(4):
        # Beyond the part of a body that a balancer reads.
        text = f"chat {number}, turn {turn} " + "x" * (20_000 if turn == 3 else 10)
        messages.append({"role": "user", "content": text})
        names.add(ask(url, {"model": "m", "messages": messages}))
        messages.append({"role": "assistant", "content": "Yes."})
    return names


@pytest.fixture
def proxied(replicas: dict[str, Replica], tmp_path: Path) -> Iterator[Balancer]:
    """haproxy in front of the servers."""
    addresses = {name: server.address for name, server in replicas.items()}
    with balancing(addresses, tmp_path) as balancer:
        wait_for(f"{balancer.url}/ready")
        time.sleep(1.5)  # the first checks of both servers
        yield balancer


@needs_haproxy
@pytest.mark.parametrize("system", [False, True])
def test_a_chat_stays_at_its_server(proxied: Balancer, system: bool) -> None:
    of_chats = [servers_of_a_chat(proxied.url, n, system) for n in range(SESSIONS)]
    assert all(len(names) == 1 for names in of_chats)
    assert set.union(*of_chats) == {"one", "two"}


@needs_haproxy
def test_a_session_and_the_beginning_of_a_prompt_stay_too(proxied: Balancer) -> None:
    by_session = [
        {
            ask(proxied.url, {"messages": [{"role": "user", "content": str(i)}]}, f"session {n}")
            for i in range(3)
        }
        for n in range(SESSIONS)
    ]
    by_prompt = [
        {ask(proxied.url, {"prompt": f"document {n} " + "y" * 600 + str(i)}) for i in range(3)}
        for n in range(SESSIONS)
    ]
    for of_keys in (by_session, by_prompt):
        assert all(len(names) == 1 for names in of_keys)
        assert set.union(*of_keys) == {"one", "two"}


@needs_haproxy
def test_only_the_sessions_of_a_stopped_server_move(
    proxied: Balancer, replicas: dict[str, Replica]
) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    before = {n: ask(proxied.url, body, f"session {n}") for n in range(SESSIONS)}
    replicas["one"].stop()
    after = {n: ask(proxied.url, body, f"session {n}") for n in range(SESSIONS)}
    assert set(after.values()) == {"two"}
    assert "two" in before.values()


@contextmanager
def nginx(replicas: dict[str, Replica], folder: Path) -> Iterator[str]:
    """The address of nginx with the deployed configuration, but for its addresses."""
    own = free_address()
    text = (DEPLOY / "nginx" / "nginx.conf").read_text()
    addresses = {"8000": own, "8001": replicas["one"].address, "8002": replicas["two"].address}
    text = re.sub(r"127\.0\.0\.1:(\d+)", lambda match: addresses[match[1]], text)
    text = text.replace("/run/nginx.pid", "nginx.pid")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    text = text.replace("http {", "http { " + folders)
    configuration = folder / "nginx.conf"
    configuration.write_text(text)
    # Its workers would be another user, who cannot write below the test's folder.
    globals_text = "daemon off; user root;" if os.geteuid() == 0 else "daemon off;"
    command = [str(NGINX), "-p", str(folder), "-c", str(configuration), "-g", globals_text]
    with (folder / "nginx.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(f"http://{own}/ready")
        yield f"http://{own}"
    finally:
        process.terminate()
        process.wait(10)


@needs_nginx
def test_nginx_keeps_sessions_and_leaves_a_stopped_server(
    replicas: dict[str, Replica], tmp_path: Path
) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    with nginx(replicas, tmp_path) as url:
        by_session = [{ask(url, body, f"session {n}") for _ in range(3)} for n in range(SESSIONS)]
        assert all(len(names) == 1 for names in by_session)
        assert set.union(*by_session) == {"one", "two"}
        assert {ask(url, body) for _ in range(SESSIONS)} == {"one", "two"}, "spread without one"
        replicas["one"].stop()
        assert {ask(url, body, f"session {n}") for n in range(SESSIONS)} == {"two"}


@needs_nginx
def test_nginx_passes_tokens_on_as_they_come(replicas: dict[str, Replica], tmp_path: Path) -> None:
    with (
        nginx(replicas, tmp_path) as url,
        httpx.stream("POST", f"{url}/stream", json={}, trust_env=False) as response,
    ):
        parts = response.iter_raw()
        begin = time.monotonic()
        assert next(parts) == b"one"
        first = time.monotonic() - begin
        assert list(parts) == []
        assert time.monotonic() - begin - first > 0.2, "the first part came with the last one"


@needs_nginx
def test_a_body_of_any_size_reaches_the_server(
    replicas: dict[str, Replica], tmp_path: Path
) -> None:
    with nginx(replicas, tmp_path) as url:
        assert ask(url, {"prompt": "x" * (8 << 20)}) in {"one", "two"}

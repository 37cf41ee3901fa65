"""Servers on the fake engine, several in one process, each with its own app, port and socket.

`python -m benchmarks.fleet.servers NUMBER` prints their URLs as a JSON list when all serve, and
ends when its standard input is closed. They share an event loop and the libraries in memory, so
that a machine holds many: what a switch costs the coordinator is as with one process for each.
"""

import asyncio
import json
import sys
from collections.abc import Sequence

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from engine_adapter.seam.factory import create_engine
from server.app import create_app
from server.commands.serve import bind
from server.http.descriptors import raise_limit
from server.settings import Settings
from server.telemetry.logs import configure_logs
from server.telemetry.metrics import Metrics


def make_app() -> FastAPI:
    """A server with the demo's proposers, which the fake engine pretends to have."""
    settings = Settings(engine="fake", engine_args={"fake_step_ms": 1}, spec_method="none")
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    engine = create_engine("fake", settings.engine_config(), registry, metrics)
    return create_app(settings, engine, metrics, registry)


async def _serve(number: int) -> None:
    listeners = [bind("127.0.0.1", 0) for _ in range(number)]
    apps = [make_app() for _ in listeners]
    servers = [
        uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)) for app in apps
    ]
    running = []
    for app, server, listener in zip(apps, servers, listeners, strict=True):
        running.append(asyncio.create_task(server.serve(sockets=[listener])))
        # One after the other: threads that import a lazy library together fail.
        await app.state.specgate.start_ended.wait()
        if (error := app.state.specgate.startup_error) is not None:
            raise error
    urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    print(json.dumps(urls), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*running)


def main(argv: Sequence[str]) -> None:
    """Serves until the standard input is closed."""
    raise_limit()
    configure_logs("error", json=True, access=False)
    asyncio.run(_serve(int(argv[0])))


if __name__ == "__main__":
    main(sys.argv[1:])

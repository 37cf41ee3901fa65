"""`specgate batch`: answers a file of requests with the engine in this process, without a port.

The requests go through the same application as over HTTP, so bodies behave exactly alike.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from engine_adapter.cancellation import was_cancelled
from engine_adapter.errors import EngineError
from engine_adapter.factory import create_engine
from server.app import create_app
from server.commands import BAD_SETTING, FAILED, INTERRUPTED, complain
from server.commands.batch_files import (
    BadLine,
    BatchError,
    Output,
    Request,
    answered,
    count_input,
    not_asked,
    read_input,
)
from server.commands.server_process import complain_of_start
from server.commands.startup_display import Progress
from server.lifespan import Hooks
from server.settings import Settings
from server.settings.sources import SettingsError, load_settings
from server.state import State
from server.telemetry.logs import configure_logs
from server.telemetry.metrics import Metrics

CONCURRENCY = 32
"""Requests that are asked at once, if nobody says how many."""

TRIES = 3
"""How often a request is asked that the engine's death cuts off."""

READY_POLL_S = 0.5

USAGE = "specgate batch IN.jsonl OUT.jsonl [--concurrency N] [MODEL] [flags of specgate serve]"


class EngineGone(Exception):
    """The engine is dead and stays so; the message is the server's."""


def batch(argv: Sequence[str]) -> int:
    """Answers every request of a file that has no answer yet. Returns the exit status."""
    try:
        source, target, concurrency, rest = _read_arguments(argv)
        # Nobody can reach this server but this command; its log lines would bury the bar.
        closed = {"api_key": (), "admin_key": (), "access_log": False}
        settings = load_settings(rest, os.environ).model_copy(update=closed)
    except SettingsError as error:
        for line in error.lines:
            complain(line)
        return BAD_SETTING
    configure_logs(settings.log_level, json=settings.log_json, access=False)
    try:
        total = count_input(source)
        with Output(target) as output:
            return Batch(settings, source, output, total, concurrency).run()
    except BatchError as error:
        complain(str(error))
        return FAILED


def _read_arguments(argv: Sequence[str]) -> tuple[Path, Path, int, list[str]]:
    """The two files, the concurrency, and what is left: the flags of `specgate serve`.

    Raises `SettingsError`.
    """
    if set(argv) & {"-h", "--help"}:
        print(f"usage: {USAGE}\n\n{_HELP}")
        sys.exit(0)
    files = list(argv[:2])
    if len(files) < 2 or any(name.startswith("-") for name in files):
        raise SettingsError(f"the two files come first: {USAGE}")
    source, target = map(Path, files)
    if target.exists() and source.exists() and target.samefile(source):
        raise SettingsError(f"OUT: {target} is the input; give another file")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--concurrency", default=str(CONCURRENCY))
    options, rest = parser.parse_known_args(argv[2:])
    if not options.concurrency.isdecimal() or int(options.concurrency) < 1:
        raise SettingsError(f"--concurrency: must be at least 1, got {options.concurrency!r}")
    return source, target, int(options.concurrency), rest


_HELP = f"""Answers the requests of IN.jsonl into OUT.jsonl, in OpenAI's batch format, in any order.
Requests that OUT.jsonl has already are skipped, so that the same command goes on after a stop.

  --concurrency N  requests that are asked at once (default: {CONCURRENCY})

The flags of `specgate serve` choose the model and the proposers; see `specgate serve --help`."""


class Batch:
    """One run over the items of an input that have no entry in the output."""

    def __init__(
        self, settings: Settings, source: Path, output: Output, total: int, concurrency: int
    ) -> None:
        self._settings = settings
        self._source = source
        self._output = output
        self._total = total
        self._concurrency = concurrency
        self._progress = Progress(settings)
        self._skipped = sum(output.done.has(item) for item in read_input(source))
        self._answered = 0
        self._tokens = 0
        self._begun = time.monotonic()

    def run(self) -> int:
        """Returns the exit status: 0 if every item of the input has an answer of status 200."""
        if self._skipped == self._total:
            return self._summary()
        try:
            return asyncio.run(self._run())
        except asyncio.CancelledError:
            complain("stopped; the same command goes on from here")
            return INTERRUPTED
        except KeyboardInterrupt:
            complain("interrupted; the same command goes on from here")
            return INTERRUPTED
        finally:
            self._progress.close()

    async def _run(self) -> int:
        main = asyncio.current_task()
        assert main is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        settings = self._settings
        try:
            config = settings.engine_config()
            engine = create_engine(settings.engine, config, registry, metrics)
        except EngineError as error:
            return complain_of_start(error)
        app = create_app(settings, engine, metrics, registry, Hooks(self._progress.stage))
        state: State = app.state.specgate
        async with app.router.lifespan_context(app):
            await state.started.wait()
            self._progress.close()
            if state.startup_error is not None:
                return complain_of_start(state.startup_error)
            return await self._ask_all(app)

    async def _ask_all(self, app: FastAPI) -> int:
        self._begun = time.monotonic()
        items = (item for item in read_input(self._source) if not self._output.done.has(item))
        transport = httpx.ASGITransport(app)
        gone: EngineGone | None = None
        async with httpx.AsyncClient(transport=transport, base_url="http://batch") as client:
            with self._bar() as bar:
                task = bar.add_task("", total=self._total, completed=self._skipped, rate="")
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(min(self._concurrency, self._total - self._skipped)):
                            group.create_task(self._work(client, items, bar, task))
                except* EngineGone as group_of:
                    gone = next(iter(_leaves(group_of)))
                except* BatchError as group_of:
                    raise next(iter(_leaves(group_of))) from None
        if gone is not None:
            complain(f"{gone} The same command goes on from here.")
        return self._summary()

    async def _work(
        self, client: httpx.AsyncClient, items: Iterator[Request | BadLine], bar: Bar, task: Any
    ) -> None:
        """Takes items until there are none."""
        for item in items:
            entry = not_asked(item) if isinstance(item, BadLine) else await ask(client, item)
            self._output.write(entry)
            self._answered += 1
            response = entry["response"]
            if response is not None and response["status_code"] == 200:
                self._tokens += response["body"]["usage"]["completion_tokens"]
            bar.update(task, advance=1, rate=f"{self._rate():.1f} tokens/s")

    def _bar(self) -> Bar:
        return Bar(
            MofNCompleteColumn(),
            BarColumn(None),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(),
        )

    def _rate(self) -> float:
        return self._tokens / max(time.monotonic() - self._begun, 1e-9)

    def _summary(self) -> int:
        failed = self._output.done.failed
        left = self._total - self._skipped - self._answered
        print(
            f"{self._answered} done, {self._skipped} skipped, {left} left, {failed} failed in all; "
            f"{self._tokens} tokens, {self._rate():.1f} tokens/s"
        )
        return FAILED if failed or left else 0


async def ask(client: httpx.AsyncClient, request: Request) -> dict[str, Any]:
    """The entry of a request, asked again once the engine is back if a death cut it off.

    Raises `EngineGone`.
    """
    for left in reversed(range(TRIES)):
        response = await client.post(
            request.url,
            content=json.dumps(request.body),
            headers={"Content-Type": "application/json"},
        )
        if was_cancelled():
            # The application answers a cancelled request, as a server that stops does.
            raise asyncio.CancelledError
        if response.status_code != 503:
            break
        await _until_ready(client)
        if not left:
            break
    request_id = response.headers["x-request-id"]
    return answered(request, response.status_code, request_id, response.json())


async def _until_ready(client: httpx.AsyncClient) -> None:
    """Waits while the engine is being replaced. Raises `EngineGone`."""
    while (response := await client.get("/ready")).status_code != 200:
        if "retry-after" not in response.headers:
            raise EngineGone(response.json()["error"]["message"])
        await asyncio.sleep(READY_POLL_S)


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[Any]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error

"""`specgate batch`: answers a file of requests with an engine of its own, without a port.

The requests go through the same application as over HTTP, so bodies behave exactly alike.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from engine_adapter.seam.errors import EngineError
from engine_adapter.seam.factory import create_engine
from server.app import create_app
from server.batches.lines import (
    BadLine,
    BatchError,
    Entry,
    Output,
    Request,
    count_input,
    generated_tokens,
    read_input,
)
from server.batches.sending import EngineGone, answer_lines
from server.commands import BAD_SETTING, FAILED, INTERRUPTED, print_error
from server.commands.admin_client import Parser
from server.commands.server_process import print_start_error
from server.commands.startup_display import StartupDisplay
from server.lifespan import StartupCallbacks
from server.settings import Settings
from server.settings.access_settings import KEY_SETTINGS
from server.settings.keys import Role
from server.settings.sources import load_settings
from server.settings.types import SettingsError
from server.state import AppState
from server.telemetry.logs import configure_logs
from server.telemetry.metrics import Metrics

CONCURRENCY = 32
"""Default number of requests that run at the same time."""

USAGE = "specgate batch IN.jsonl OUT.jsonl [--concurrency N] [MODEL] [flags of specgate serve]"


def _without_clients(settings: Settings, concurrency: int) -> Settings:
    """The settings of an application without a port: keys and the access log have no use.

    A rule for the name of an API key matches nothing then, and is left out. No limit ends a
    request: the batch itself bounds how many there are.
    """
    rules = settings.rules(settings.keys_at_start.names(Role.API))
    usable_rules = tuple(dict(rule.source) for rule in rules if rule.match.api_key is None)
    closed: dict[str, Any] = {
        **dict.fromkeys(KEY_SETTINGS, ()),
        "named_api_key": {},
        "key_file": None,
        "fleet_peers": (),
        "fleet_state": None,
        "files_dir": None,
    }
    timeouts = {"queue_timeout_s": 0.0, "first_token_timeout_s": 0.0, "request_timeout_s": 0.0}
    unlimited = {
        "access_log": False,
        "max_queued_requests": concurrency,
        "max_queued_prompt_tokens": sys.maxsize,
        "max_key_requests": None,
        "max_key_requests_per_minute": None,
    }
    return settings.model_copy(
        update={**closed, **timeouts, **unlimited, "routing_rules": usable_rules}
    )


def batch(argv: Sequence[str]) -> int:
    """Answers every request of a file that has no answer yet. Returns the exit status."""
    options, server_arguments = _parse(argv)
    try:
        settings = _without_clients(
            load_settings(server_arguments, os.environ), options.concurrency
        )
    except SettingsError as error:
        for line in error.lines:
            print_error(line)
        return BAD_SETTING
    configure_logs(settings.log_level, json=settings.log_json, access=False)
    try:
        total = count_input(options.source)
        with Output(options.target) as output:
            return BatchRun(settings, options.source, output, total, options.concurrency).run()
    except BatchError as error:
        print_error(str(error))
        return FAILED


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own arguments, and those of `specgate serve`."""
    parser = Parser(
        "specgate batch",
        "Answers the requests of IN.jsonl into OUT.jsonl, in OpenAI's batch format, in any order. "
        "Requests that OUT.jsonl has already are skipped, so the same command continues after a "
        "stop.",
        usage=USAGE,
        epilog="The flags of `specgate serve` choose the model and the proposers; see `specgate "
        "serve --help`.",
    )
    parser.add_argument("source", metavar="IN.jsonl", type=Path, help="the requests")
    parser.add_argument("target", metavar="OUT.jsonl", type=Path, help="the answers")
    parser.add_argument(
        "--concurrency",
        type=_concurrency,
        default=CONCURRENCY,
        metavar="N",
        help=f"requests that run at the same time (default: {CONCURRENCY})",
    )
    # argparse would take the value of a flag of `specgate serve` for a file.
    files_first = len(argv) > 1 and not any(word.startswith("-") for word in argv[:2])
    if not files_first and not set(argv) & {"-h", "--help"}:
        parser.error(f"the two files come first: {USAGE}")
    options, server_arguments = parser.parse_known_args(argv)
    source, target = options.source, options.target
    if target.exists() and source.exists() and target.samefile(source):
        parser.error(f"OUT: {target} is the input; give another file")
    return options, server_arguments


def _concurrency(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text!r}")
    return int(text)


class BatchRun:
    """One run over the items of an input that have no entry in the output."""

    def __init__(
        self, settings: Settings, source: Path, output: Output, total: int, concurrency: int
    ) -> None:
        self._settings = settings
        self._source = source
        self._output = output
        self._total = total
        self._concurrency = concurrency
        self._display = StartupDisplay(settings)
        self._skipped = sum(output.done.has(item) for item in read_input(source))
        self._answered = 0
        self._tokens = 0
        self._start_s = time.monotonic()

    def run(self) -> int:
        """Returns the exit status: 0 if every item of the input has an answer of status 200."""
        if self._skipped == self._total:
            return self._summary()
        try:
            return asyncio.run(self._run())
        except asyncio.CancelledError:
            print_error("stopped; run the same command to continue")
            return INTERRUPTED
        except KeyboardInterrupt:
            print_error("interrupted; run the same command to continue")
            return INTERRUPTED
        finally:
            self._display.close()

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
            return print_start_error(error, settings)
        app = create_app(settings, engine, metrics, registry, StartupCallbacks(self._display.stage))
        state: AppState = app.state.specgate
        async with app.router.lifespan_context(app):
            await state.start_ended.wait()
            self._display.close()
            if state.startup_error is not None:
                return print_start_error(state.startup_error, self._settings)
            return await self._send_all(app)

    async def _send_all(self, app: FastAPI) -> int:
        self._start_s = time.monotonic()
        items = (item for item in read_input(self._source) if not self._output.done.has(item))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            with self._bar() as bar:
                task = bar.add_task("", total=self._total, completed=self._skipped, rate="")

                async def next_item() -> Request | BadLine | None:
                    return next(items, None)

                async def write(_: Request | BadLine, make_entry: Callable[[], Entry]) -> None:
                    entry = make_entry()
                    self._output.write(entry)
                    self._answered += 1
                    self._tokens += generated_tokens(entry)
                    bar.update(task, advance=1, rate=f"{self._rate():.1f} tokens/s")

                concurrency = min(self._concurrency, self._total - self._skipped)
                try:
                    await answer_lines(client, next_item, write, concurrency)
                except EngineGone as error:
                    print_error(f"{error} Run the same command to continue.")
        return self._summary()

    def _bar(self) -> Bar:
        return Bar(
            MofNCompleteColumn(),
            BarColumn(None),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(),
        )

    def _rate(self) -> float:
        return self._tokens / max(time.monotonic() - self._start_s, 1e-9)

    def _summary(self) -> int:
        num_failed = self._output.done.failed
        remaining = self._total - self._skipped - self._answered
        print(
            f"{self._answered} done, {self._skipped} skipped, {remaining} left, "
            f"{num_failed} failed in all; {self._tokens} tokens, {self._rate():.1f} tokens/s"
        )
        return FAILED if num_failed or remaining else 0

"""The command as a user runs it: a process with a terminal, a port, signals and a status."""

import gc
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cases import proved_beyond

COMMAND = [sys.executable, "-m", "server.cli"]
ROOT = Path(__file__).parents[2]
START_S = 150.0


def environment(**variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPECGATE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", **variables}


def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [*COMMAND, *argv],
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=START_S,
    )


class Served:
    """A `specgate serve` process whose output is collected."""

    def __init__(self, *argv: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--engine", "fake", "--port", "0", *argv],
            cwd=ROOT,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=lines.extend, args=[stream], daemon=True)
            for lines, stream in ((self.out, self.process.stdout), (self.err, self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def line(self, pattern: str) -> re.Match[str]:
        """The first line of output that matches, once it is there."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for line in [*self.out, *self.err]:
                if match := re.search(pattern, line):
                    return match
            if self.process.poll() is not None and not any(r.is_alive() for r in self._readers):
                break
            time.sleep(0.02)
        raise AssertionError(f"no line matches {pattern!r}:\n{''.join(self.out + self.err)}")

    @property
    def url(self) -> str:
        return self.line(r"serves \S+ on (http://\S+)")[1]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal; returns the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(START_S)
        for reader in self._readers:
            reader.join(START_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status


@pytest.fixture
def served() -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def serve(*argv: str, **variables: str) -> Served:
        started.append(Served(*argv, **variables))
        return started[-1]

    yield serve
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()


Serve = Callable[..., Served]


@pytest.mark.engine
def test_serve_starts_prints_its_usage_and_stops_cleanly(served: Serve) -> None:
    server = served()
    url = server.url
    assert httpx.get(f"{url}/ready").status_code == 200
    server.line("Switch:")
    server.line("switch_spec_method")
    status = server.end()
    out = "".join(server.out)
    assert status == 0, "".join(server.err)
    assert re.search(r"\[ +\d+\.\d s\] Preparing the fake engine\n", out)
    assert re.search(r"\[ +\d+\.\d s\] Reading the tokenizer", out)
    assert re.search(r"^\* +auto +policy: ", out, re.MULTILINE)
    assert re.search(r"^ +draft +draft_model +4 +primary", out, re.MULTILINE)
    assert re.search(r"^ +ngram +ngram +5 +backup", out, re.MULTILINE)
    assert re.search(r"^ +none +plain decoding", out, re.MULTILINE)
    assert "Traceback" not in "".join(server.err)


@pytest.mark.engine
def test_the_printed_curl_lines_work(served: Serve) -> None:
    server = served(
        *("--api-key", "sk-one", "--admin-key", "sk-two", "--served-model-name", "it's")
    )
    lines = [server.line(f"^(curl .*{path}.*)$")[1] for path in ("completions", "switch_spec")]
    keys = environment(SPECGATE_API_KEY="sk-one", SPECGATE_ADMIN_KEY="sk-two")
    completion, switch = (
        json.loads(subprocess.run(f"{line} -s", shell=True, env=keys, capture_output=True).stdout)
        for line in lines
    )
    assert completion["model"] == "it's"
    assert completion["usage"]["completion_tokens"] > 0
    assert switch["active"]["spec_method"] == "ngram"


@pytest.mark.engine
def test_while_loading_it_answers_probes_and_can_be_stopped(served: Serve) -> None:
    server = served("--engine-args", '{"fake_start_s": 600}')
    server.line("Starting the fake engine")
    port = listening_port(server.process.pid)
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    assert httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 503
    assert run("serve", "--engine", "fake", "--port", str(port)).returncode == 2
    assert server.end() == 0
    assert "Traceback" not in "".join(server.err)


@pytest.mark.engine
def test_sighup_while_its_libraries_load_does_not_end_it(served: Serve) -> None:
    server = served()
    server.line("Loading libraries")
    server.process.send_signal(signal.SIGHUP)
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert server.end() == 0


def listening_port(pid: int) -> int:
    """The one TCP port on which a process listens, once it does."""
    process, deadline = psutil.Process(pid), time.monotonic() + START_S
    while not (ports := {c.laddr.port for c in process.net_connections() if c.status == "LISTEN"}):
        assert time.monotonic() < deadline, "it does not listen"
        time.sleep(0.02)
    (port,) = ports
    return int(port)


@pytest.mark.engine
def test_running_requests_finish_before_it_stops(served: Serve) -> None:
    server = served("--engine-args", '{"fake_step_ms": 20, "fake_acceptance": 0}')
    body = {"prompt": "a", "max_tokens": 50, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert not any('"error"' in line for line in rest)
    assert server.wait() == 0


@pytest.mark.engine
def test_what_does_not_finish_in_time_ends_with_an_error(served: Serve) -> None:
    server = served(
        *("--shutdown-timeout-s", "1", "--engine-args", '{"fake_step_ms": 1000}'), "--no-access-log"
    )
    url = f"{server.url}/v1/completions"
    body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True}
    stream = {**body, "stream": True}
    with ThreadPoolExecutor() as pool:
        whole = pool.submit(httpx.post, url, json=body, timeout=120)
        with httpx.stream("POST", url, json=stream, timeout=120) as response:
            begun = time.monotonic()
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            *_, failure, done = [line for line in lines if line]
        refused = whole.result()
    assert time.monotonic() - begun < 100, "of 500 s"
    assert json.loads(failure.removeprefix("data: "))["error"]["code"] == "stopping"
    assert done == "data: [DONE]"
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
    assert server.wait() == 0
    assert "Traceback" not in "".join(server.err)


@pytest.mark.engine
def test_a_failed_start_ends_with_its_reason(served: Serve) -> None:
    server = served("--engine-args", '{"fake_fail_start": "not enough memory"}')
    assert server.wait() == 1
    err = "".join(server.err)
    assert "specgate: error: the engine could not be started: not enough memory" in err
    assert "Traceback" not in err
    assert "serves" not in "".join(server.out)


def test_an_argument_that_the_engine_refuses_is_an_invalid_setting() -> None:
    result = run(*SERVE, "--engine-args", '{"fake_step_sm": 1}')
    assert result.returncode == 2
    assert "specgate: error: --engine-args: fake_step_sm is unknown" in result.stderr


SERVE = ("serve", "--engine", "fake", "--port", "0")


INVALID = [
    (["--prot", "1"], "--prot: unknown flag; did you mean --port?"),
    (["--max-model-len", "many"], "--max-model-len: input should be a valid integer"),
    (["/no/such/model"], "MODEL: the folder '/no/such/model' does not exist"),
    (["--primary", "large"], "--primary: there is no proposer 'large'"),
    (["--insecure", "--host", "no..name"], "--host: cannot resolve 'no..name'"),
    (["--insecure", "--host", "192.0.2.1"], "--host: cannot listen on 192.0.2.1"),
]


@pytest.mark.parametrize(("argv", "expected"), proved_beyond([INVALID[0], INVALID[-1]], INVALID))
def test_an_invalid_setting_ends_it_with_one_line(argv: list[str], expected: str) -> None:
    result = run(*SERVE, *argv)
    assert result.returncode == 2
    assert result.stderr.startswith(f"specgate: error: {expected}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_port_in_use_is_found_before_anything_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--engine", "fake", "--port", str(port))
    assert result.returncode == 2
    assert result.stderr.startswith(f"specgate: error: --port: {port} on 127.0.0.1: ")
    assert result.stdout == ""


@pytest.mark.engine
def test_logs_can_be_json(served: Serve) -> None:
    server = served("--log-json", SPECGATE_PROT="1")
    server.line('"event": "ready"')
    events: list[dict[str, Any]] = []
    url = re.search(r'"url": "([^"]+)"', "".join(server.err))
    assert url is not None
    httpx.get(f"{url[1]}/version")
    assert server.end() == 0
    events = [json.loads(line) for line in server.err]
    by_name = {event["event"]: event for event in events}
    assert server.out == []
    assert {"loading", "ready", "request", "stopping", "unknown_variable"} <= set(by_name)
    assert (by_name["request"]["path"], by_name["request"]["status"]) == ("/version", 200)
    assert "SPECGATE_PORT" in by_name["unknown_variable"]["detail"]


@pytest.mark.engine
def test_ctrl_c_stops_it_and_the_access_log_can_be_turned_off(served: Serve) -> None:
    server = served("--no-access-log")
    httpx.get(f"{server.url}/version")
    assert server.end(signal.SIGINT) == 0
    assert "/version" not in "".join(server.err)


def test_the_hub_variables_are_left_as_they_are() -> None:
    script = "import os; from server.cli import main; main(['version']); "
    script += "from server.settings.sources import load_settings; load_settings([], {}); "
    script += "print('HF_HUB_OFFLINE' in os.environ)"
    variables = {k: v for k, v in environment().items() if k != "HF_HUB_OFFLINE"}
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert result.stdout.splitlines()[-1] == "False"


def test_settings_load_no_engine() -> None:
    script = (
        "import sys; from server.settings.sources import load_settings; load_settings([], {}); "
    )
    script += "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_version_lists_the_installed_versions() -> None:
    result = run("version")
    assert result.returncode == 0
    assert re.match(r"specgate \S+\npython 3\.\d+", result.stdout)


@pytest.mark.parametrize("argv", [[], ["sevre"], ["version", "now"]])
def test_an_unknown_command_is_refused(argv: list[str]) -> None:
    result = run(*argv)
    assert result.returncode == 2
    assert result.stderr


def test_the_processes_that_it_starts_seldom_collect_garbage() -> None:
    """As the engine's: the tests' processes start theirs with the command's module."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        threshold = pool.apply(gc.get_threshold)[0]
    assert threshold == gc.get_threshold()[0]
    assert threshold > 100 * 300, "a hundred streams, each of some 300 objects, start no pass"

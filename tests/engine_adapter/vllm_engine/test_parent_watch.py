"""A process that the gateway started exits with it."""

import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from engine_adapter.vllm_engine.parent_watch import exit_with_parent

ROOT = Path(__file__).parents[3]

GATEWAY = """
import multiprocessing, time
from tests.engine_adapter.vllm_engine.test_parent_watch import engine
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=engine)
    child.start()
    print(child.pid, flush=True)
    time.sleep(600)
"""


def engine() -> None:
    """A process that would run forever."""
    exit_with_parent()
    time.sleep(600)


def test_a_killed_gateway_leaves_no_engine_behind() -> None:
    gateway = subprocess.Popen(
        [sys.executable, "-c", GATEWAY], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert gateway.stdout is not None
    child = psutil.Process(int(gateway.stdout.readline()))
    gateway.stdout.close()
    gateway.send_signal(signal.SIGKILL)
    gateway.wait()
    try:
        child.wait(60)
    except psutil.TimeoutExpired:
        child.kill()
        raise


def test_a_process_without_a_parent_process_keeps_running() -> None:
    assert multiprocessing.parent_process() is None
    exit_with_parent()

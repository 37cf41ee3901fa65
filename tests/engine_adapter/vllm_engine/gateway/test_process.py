"""The cause of a death, as the log and the clients have it."""

import signal

import pytest

from engine_adapter.vllm_engine.gateway.process import describe_end


@pytest.mark.parametrize(
    ("status", "reported", "expected"),
    [
        (-signal.SIGKILL, True, "killed by signal 9 (SIGKILL), as the kernel does when memory"),
        (-signal.SIGSEGV, True, "killed by signal 11 (SIGSEGV)"),
        (1, True, "failed with an error, whose traceback is in the log"),
        # It has said that it fails, and takes long to end.
        (None, True, "failed with an error, whose traceback is in the log"),
        (None, False, "sent a message that could not be read"),
        (3, True, "ended with exit status 3"),
        (0, True, "ended with exit status 0"),
    ],
)
def test_the_cause_says_what_happened(status: int | None, reported: bool, expected: str) -> None:
    assert expected in describe_end([status], reported=reported)


def test_of_several_processes_the_one_that_failed_is_described() -> None:
    assert "SIGTERM" in describe_end([0, -signal.SIGTERM], reported=True)

"""Progress lines through the pipe: whole and in order; a writer never blocks or fails."""

import asyncio
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_adapter.seam.errors import EngineConfigError, EngineStartError
from engine_adapter.vllm_engine.load_progress import (
    ProgressWriter,
    progress_pipe,
    report_failures,
)

ROOT = Path(__file__).parents[3]


async def until(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (the reader has no event to wait for)
            await asyncio.sleep(0.005)


async def write_in_another_process(pipe: str, program: str) -> None:
    code = (
        "import sys\n"
        "from engine_adapter.vllm_engine.load_progress import ProgressWriter\n"
        f"writer = ProgressWriter(sys.argv[1])\n{program}"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, pipe, cwd=ROOT)
    assert await process.wait() == 0


async def test_lines_of_another_process_arrive_whole_and_in_order() -> None:
    lines: list[str] = []
    written = [f"line {i} of the loading: {'é' * (i % 40)}" for i in range(300)]
    async with progress_pipe(lines.append) as pipe:
        program = (
            "for i in range(300): writer.write(f\"line {i} of the loading: {'é' * (i % 40)}\")"
        )
        await write_in_another_process(pipe, program)
        await until(lambda: len(lines) >= len(written))
    assert lines == written


async def test_a_writer_that_closes_does_not_end_the_pipe() -> None:
    lines: list[str] = []
    async with progress_pipe(lines.append) as pipe:
        await write_in_another_process(pipe, "writer.write('first')")
        await until(lambda: lines == ["first"])
        await write_in_another_process(pipe, "writer.write('second')")
        await until(lambda: lines == ["first", "second"])


async def test_a_line_that_arrives_in_pieces_is_passed_on_whole() -> None:
    lines: list[str] = []
    async with progress_pipe(lines.append) as pipe:
        descriptor = os.open(pipe, os.O_WRONLY)
        for piece in (b"load", "ing é".encode()[:-1], "é\nnext".encode()[1:]):
            os.write(descriptor, piece)
            await asyncio.sleep(0.01)
        os.close(descriptor)
        await until(lambda: bool(lines))
        assert lines == ["loading é"]


async def test_two_writers_at_once_do_not_mix_their_lines() -> None:
    lines: list[str] = []
    async with progress_pipe(lines.append) as pipe:
        for i in range(50):
            ProgressWriter(pipe).write(f"a{i}")
            ProgressWriter(pipe).write(f"b{i}")
        await until(lambda: len(lines) >= 100)
    assert lines == [f"{writer}{i}" for i in range(50) for writer in "ab"]


async def test_a_line_written_just_before_the_end_is_delivered() -> None:
    lines: list[str] = []
    async with progress_pipe(lines.append) as pipe:
        ProgressWriter(pipe).write("allocating KV cache: 1.2 s")
    assert lines == ["allocating KV cache: 1.2 s"]


async def test_only_the_pipes_owner_may_write_to_it() -> None:
    async with progress_pipe(lambda line: None) as pipe:
        mode = os.stat(pipe).st_mode
        assert stat.S_ISFIFO(mode)
        assert not mode & 0o077


async def test_the_pipe_is_removed_and_writing_to_it_then_is_harmless() -> None:
    async with progress_pipe(lambda line: None) as pipe:
        pass
    assert not os.path.exists(os.path.dirname(pipe))  # noqa: ASYNC240
    ProgressWriter(pipe).write("no reader")


def test_without_a_pipe_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *args: opened.append(args))
    ProgressWriter(None).write("nothing")
    assert opened == []


@pytest.mark.timeout(20)
def test_a_pipe_without_a_reader_neither_blocks_nor_raises(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    ProgressWriter(str(tmp_path / "pipe")).write("line")


@pytest.mark.timeout(20)
def test_a_full_pipe_neither_blocks_nor_raises(tmp_path: Path) -> None:
    """A gateway that does not read must not stop the engine while it loads."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for _ in range(200):
            ProgressWriter(str(tmp_path / "pipe")).write("x" * 1000)
    finally:
        os.close(reader)


async def test_a_stage_writes_its_begin_and_its_duration() -> None:
    lines: list[str] = []
    async with progress_pipe(lines.append) as pipe:
        with ProgressWriter(pipe).stage("loading target"):
            await until(lambda: lines == ["loading target"])
        await until(lambda: len(lines) == 2)
    assert lines[1].startswith("loading target: ")
    assert lines[1].endswith(" s")


async def test_a_failed_start_is_explained_by_the_first_refusal() -> None:
    lines: list[str] = []

    async def start() -> None:
        async with progress_pipe(lines.append) as pipe:
            writer = ProgressWriter(pipe)
            writer.write("loading")
            writer.refuse("proposer", "p: two\nlines")
            writer.refuse("proposer", "p: on another rank")
            raise EngineStartError("vLLM did not start")

    with pytest.raises(EngineConfigError) as caught:
        await start()
    assert (caught.value.setting, caught.value.message) == ("proposer", "p: two\nlines")
    assert lines == ["loading"]


async def test_a_failed_start_without_a_refusal_is_what_it_was() -> None:
    failure = EngineStartError("vLLM did not start")
    with pytest.raises(EngineStartError) as caught:
        async with progress_pipe(lambda line: None):
            raise failure
    assert caught.value is failure


async def test_a_long_refusal_is_cut_to_a_line_that_is_written_at_once() -> None:
    async def start() -> None:
        async with progress_pipe(lambda line: None) as pipe:
            ProgressWriter(pipe).refuse("proposer", "x" * 100_000)
            raise EngineStartError("vLLM did not start")

    with pytest.raises(EngineConfigError) as caught:
        await start()
    assert 1000 < len(caught.value.message) < 4096


async def test_a_stage_that_fails_writes_no_duration() -> None:
    lines: list[str] = []
    async with progress_pipe(lines.append) as pipe:
        with pytest.raises(OSError, match="no weights"), ProgressWriter(pipe).stage("loading"):
            raise OSError("no weights")
        ProgressWriter(pipe).write("end")
        await until(lambda: "end" in lines)
    assert lines == ["loading", "end"]


def test_the_writer_needs_no_heavy_imports() -> None:
    program = (
        "import sys, engine_adapter.vllm_engine.load_progress\n"
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


async def test_a_failed_start_has_the_first_exception_of_the_engines_process() -> None:
    lines: list[str] = []

    async def start() -> None:
        async with progress_pipe(lines.append) as pipe:
            writer = ProgressWriter(pipe)
            writer.fail(AttributeError("no conv_dim " + "\U0001f642" * 2000))
            writer.fail(RuntimeError("See root cause above."))
            raise EngineStartError("Failed core proc(s): {}")

    with pytest.raises(EngineStartError) as caught:
        await start()
    assert str(caught.value).startswith(
        "vLLM did not start: AttributeError: no conv_dim \U0001f642"
    )
    assert lines == []


async def test_a_refusal_explains_more_than_an_exception() -> None:
    async def start() -> None:
        async with progress_pipe(lambda line: None) as pipe:
            ProgressWriter(pipe).fail(ValueError("x\ny" * 1000))
            ProgressWriter(pipe).refuse("block_size", "too small")
            raise EngineStartError("it ended")

    with pytest.raises(EngineConfigError, match="too small"):
        await start()


async def test_an_exception_that_a_start_survives_is_not_told() -> None:
    lines: list[str] = []
    async with progress_pipe(lines.append) as pipe:
        ProgressWriter(pipe).fail(ValueError("it was tried again"))
    assert lines == []


async def test_an_exception_that_vllm_logs_is_told() -> None:
    vllm = logging.getLogger("vllm")
    handlers = [*vllm.handlers]
    log = logging.getLogger("vllm.v1.engine.core")

    async def start() -> None:
        async with progress_pipe(lambda line: None) as pipe:
            report_failures(pipe)
            log.error("a line without an exception")
            log.warning("it continues", exc_info=KeyError("less than an error"))
            log.error("EngineCore failed to start.", exc_info=ValueError("no such layer"))
            raise EngineStartError("Failed core proc(s): {}")

    try:
        with pytest.raises(EngineStartError, match="did not start: ValueError: no such layer"):
            await start()
    finally:
        vllm.handlers[:] = handlers

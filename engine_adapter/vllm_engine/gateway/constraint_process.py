"""The gateway's end of a process of `constraint_worker`."""

import asyncio
import copy
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from engine_adapter.seam.errors import EngineStartError
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from engine_adapter.vllm_engine.gateway.constraint_worker import encode_frame
from engine_adapter.vllm_engine.grammars import BACKEND, choices_text

log = structlog.get_logger(__name__)

_WORKER = "engine_adapter.vllm_engine.gateway.constraint_worker"
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What llguidance needs to know of the engine.

    Attributes:
        tokenizer: a fast tokenizer, as the JSON of the library `tokenizers`.
        any_whitespace, named_properties: as in `grammars.serialized`.
    """

    tokenizer: str
    vocab_size: int
    eos_token_id: int | None
    any_whitespace: bool
    named_properties: bool = False

    @classmethod
    def from_tokenizer(cls, vllm_config: Any, tokenizer: Any) -> "Vocabulary | None":
        """That of an engine; `None` with another backend, or a tokenizer that only vLLM reads.

        Then vLLM checks constraints itself, without a limit, and the log says so.
        """
        config = vllm_config.structured_outputs_config
        fast = getattr(tokenizer, "backend_tokenizer", None)
        if config.backend != BACKEND or fast is None:
            log.warning("formats_have_no_limits", backend=config.backend, has_tokenizer=bool(fast))
            return None
        fast = copy.copy(fast)
        fast.no_padding()
        fast.no_truncation()
        return cls(
            tokenizer=fast.to_str(),
            vocab_size=max(vllm_config.model_config.get_vocab_size(), len(tokenizer)),
            eos_token_id=tokenizer.eos_token_id,
            any_whitespace=not config.disable_any_whitespace,
            named_properties=config.disable_additional_properties,
        )


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What compiling one constraint may take: CPU time in seconds, memory and stack in bytes."""

    cpu_seconds: float
    memory_bytes: int
    stack_bytes: int


def setup_frame(vocabulary: Vocabulary, limits: CompileLimits) -> bytes:
    """The first message to a worker. Megabytes, so it is made once, and not on the event loop."""
    return encode_frame({"vocabulary": asdict(vocabulary), **asdict(limits)})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker says of a constraint.

    Attributes:
        reason: why it cannot be enforced; `None` if it can be.
        retires: the worker keeps so much memory that it should be replaced.
        size: the bytes that it takes when it is compiled.
    """

    reason: str | None
    retires: bool
    size: int = 0


class ConstraintProcess:
    """A worker that compiles one constraint at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, setup: bytes) -> "ConstraintProcess":
        """A worker that is ready; `setup` is of `setup_frame`. Raises `EngineStartError`."""
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        process = cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _WORKER),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": paths},
                # Ctrl-C reaches the whole process group, and the gateway ends its workers itself.
                start_new_session=True,
            )
        )
        ready = await process._exchange(setup)
        if ready is None or ready["error"] is not None:
            status = await process.wait_for_exit()
            cause = f"exit status {status}" if ready is None else ready["error"]
            raise EngineStartError(f"The process that checks constraints did not start: {cause}")
        return process

    async def compile(self, constraint: StructuredOutput) -> Answer | None:
        """The worker's answer; `None` if the constraint has ended the worker.

        The worker's limit is of CPU time: on a busy machine it can take much longer, and those
        who wait have limits of their own. A call that is cancelled leaves no process.
        """
        is_choice = constraint.kind is ConstraintKind.CHOICE
        value = choices_text(constraint.choices) if is_choice else constraint.value
        frame = encode_frame({"kind": constraint.kind.value, "value": value})
        answer = await self._exchange(frame)
        return None if answer is None else Answer(**answer)

    async def wait_for_exit(self) -> int:
        """The exit status of a process that has ended by itself.

        It is not killed: that would take its status away from asyncio's own wait.
        """
        await self._process.communicate()  # closes the pipes too
        return await self._process.wait()

    async def end(self) -> None:
        """Kills the process, if it still runs."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.communicate()

    async def _exchange(self, frame: bytes) -> dict[str, Any] | None:
        """Sends a message and waits for the answer; `None` if the process ended before it."""
        try:
            return await self._answer(frame)
        except BaseException:
            await asyncio.shield(self.end())
            raise

    async def _answer(self, frame: bytes) -> dict[str, Any] | None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(frame)
            await stdin.drain()
            head = await stdout.readexactly(4)
            answer: dict[str, Any] = json.loads(
                await stdout.readexactly(int.from_bytes(head, "big"))
            )
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return answer

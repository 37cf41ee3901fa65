"""Refuses constraints that cannot be enforced, or that take too much time or memory to compile.

Each one is compiled in a process before the engine gets it. The process is killed if it takes too
long, and if all clients that wait for it have left. vLLM's own check is left out: it runs in a
thread that every admission waits for, and nothing can end it.
"""

import asyncio
import hashlib
import resource
import signal
from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

import structlog

from engine_adapter.seam.config import DEFAULT_GRAMMAR_BYTES, EngineConfig
from engine_adapter.seam.errors import (
    CONSTRAINT_TOO_COMPLEX,
    EngineError,
    EngineStartError,
    InvalidRequest,
)
from engine_adapter.seam.text import truncate
from engine_adapter.seam.types import StructuredOutput
from engine_adapter.vllm_engine.compiled_grammars import too_large
from engine_adapter.vllm_engine.gateway.constraint_process import (
    Answer,
    CompileLimits,
    ConstraintProcess,
    Vocabulary,
    setup_frame,
)
from engine_adapter.vllm_engine.gateway.fair_semaphore import FairSemaphore

log = structlog.get_logger(__name__)

MEMORY_BYTES = 512 << 20
"""The most memory that compiling one constraint takes, in bytes."""

STACK_BYTES = 1 << 20
"""The most stack that compiling one constraint takes, in bytes.

llguidance compiles definitions that refer to each other within each other, and an overflow ends the
process. A thread of the engine has as much as `ulimit -s` says, 8 MiB as a rule. Here it is half of
that at most, so what fits here fits there.
"""

MAX_PROCESSES = 3
"""Processes that compile."""

MAX_PROCESSES_OF_ONE = 2
"""Those of one owner. With a second one, a slow constraint does not hold up its others. The third
process is for the others.
"""

START_TIMEOUT_S = 60.0
"""How long the first process may take to read the tokenizer, in seconds."""

MAX_VERDICTS = 1024
"""The verdicts that are kept."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check; a `reason` refuses the constraint.

    Attributes:
        size: the bytes that it takes when it is compiled; `None` if that is not known.
    """

    reason: str | None = None
    code: str | None = None
    size: int | None = None


@dataclass(slots=True)
class _Job:
    """A check that runs or waits for a slot.

    Attributes:
        owners: owner -> how many of its requests wait for the verdict.
    """

    owners: Counter[str | None] = field(default_factory=Counter)
    task: asyncio.Task[Verdict] = field(init=False)


class ConstraintChecker:
    """Checks constraints. Lives on the event loop.

    Args:
        cpu_seconds: the most CPU time that compiling one constraint takes.
        grammar_bytes: the most bytes of all compiled grammars of the engine.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        cpu_seconds: float,
        grammar_bytes: int = DEFAULT_GRAMMAR_BYTES,
    ) -> None:
        self._vocabulary = vocabulary
        self._grammar_bytes = grammar_bytes
        self._limits = CompileLimits(cpu_seconds, MEMORY_BYTES, stack_bytes())
        self._setup: bytes | None = None
        self._slots = FairSemaphore(MAX_PROCESSES, MAX_PROCESSES_OF_ONE)
        self._idle: list[ConstraintProcess] = []
        self._jobs: dict[bytes, _Job] = {}
        # Also those of jobs whose clients have all left, until they have ended their process.
        self._tasks: set[asyncio.Task[Verdict]] = set()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    @classmethod
    def from_config(cls, config: EngineConfig, vocabulary: Vocabulary) -> "ConstraintChecker":
        """That of an engine."""
        return cls(vocabulary, config.max_constraint_s, config.max_compiled_grammar_bytes)

    async def start(self) -> None:
        """Starts the first process, so that no request waits for it. Raises `EngineStartError`."""
        try:
            process = await asyncio.wait_for(self._new_process(), START_TIMEOUT_S)
        except TimeoutError:
            message = f"The process that checks constraints was not ready in {START_TIMEOUT_S:g} s."
            raise EngineStartError(message) from None
        self._idle.append(process)

    async def check(self, constraint: StructuredOutput, owner: str | None = None) -> None:
        """Returns if the engine can enforce a constraint; equal ones are compiled once.

        Args:
            owner: whose it is. The processes are shared fairly between owners.

        Raises:
            InvalidRequest: it cannot, or only with too much time or memory.
            EngineError: it could not be checked.
        """
        key = _key(constraint)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._shared(key, constraint, owner)
        else:
            self._verdicts.move_to_end(key)
        if verdict.reason is not None:
            message = f"{constraint.param}: {truncate(verdict.reason)}"
            raise InvalidRequest(constraint.param, message, verdict.code)

    def size_of(self, constraint: StructuredOutput) -> int | None:
        """The bytes that a constraint takes when it is compiled; `None` if that is not known."""
        verdict = self._verdicts.get(_key(constraint))
        return None if verdict is None else verdict.size

    async def stop(self) -> None:
        """Ends all processes, and the checks that run."""
        for task in self._tasks:
            if not task.cancelling():  # a second time would end the wait for its process
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._idle:
            await self._idle.pop().end()

    async def _new_process(self) -> ConstraintProcess:
        if self._setup is None:
            self._setup = await asyncio.to_thread(setup_frame, self._vocabulary, self._limits)
        return await ConstraintProcess.start(self._setup)

    async def _shared(self, key: bytes, constraint: StructuredOutput, owner: str | None) -> Verdict:
        """The verdict of the job that works on it already, or of a new one.

        The last of those who wait for a job ends it when it leaves.
        """
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job()
            job.task = asyncio.create_task(self._judge(key, constraint, job.owners))
            self._tasks.add(job.task)
            job.task.add_done_callback(self._tasks.discard)
        job.owners[owner] += 1
        self._slots.grant_free()
        try:
            return await asyncio.shield(job.task)
        finally:
            job.owners[owner] -= 1
            if not job.owners[owner]:
                del job.owners[owner]
            if not job.owners:
                # It ends now, so no other request may join it.
                self._jobs.pop(key, None)
                job.task.cancel()

    async def _judge(
        self, key: bytes, constraint: StructuredOutput, owners: Collection[str | None]
    ) -> Verdict:
        async with self._slots.acquire(owners):
            if self._idle:
                process = self._idle.pop()
            else:
                process = await self._new_process()
            answer = await process.compile(constraint)
            if answer is None:
                verdict = self._of_ended(await process.wait_for_exit())
            else:
                verdict = self._of_answer(answer)
                if answer.retires:
                    await process.end()
                else:
                    self._idle.append(process)
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)
        return verdict

    def _of_answer(self, answer: Answer) -> Verdict:
        if answer.reason is not None:
            return Verdict(answer.reason)
        if (reason := too_large(answer.size, self._grammar_bytes)) is not None:
            return Verdict(reason, CONSTRAINT_TOO_COMPLEX)
        return Verdict(size=answer.size)

    def _of_ended(self, status: int) -> Verdict:
        """The verdict on a constraint that has ended its process with this status.

        Raises `EngineError` if something else has ended it.
        """
        if status == -signal.SIGPROF:
            much = f"{self._limits.cpu_seconds:g} s of CPU time"
        elif status == -signal.SIGABRT:
            much = f"{self._limits.memory_bytes >> 20} MiB of memory"
        elif status == -signal.SIGSEGV:
            # The limit of memory holds for the stack too, and a failed allocation can end so.
            stack, memory = self._limits.stack_bytes >> 10, self._limits.memory_bytes >> 20
            much = f"{stack} KiB of stack or {memory} MiB of memory"
        else:
            log.error("constraint_process_died", status=status)
            raise EngineError(f"the process that checked a constraint ended with status {status}")
        return Verdict(f"takes more than {much} to compile; simplify it.", CONSTRAINT_TOO_COMPLEX)


def stack_bytes() -> int:
    """The stack for compiling: half of what a thread of the engine has, or `STACK_BYTES`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return STACK_BYTES if soft == resource.RLIM_INFINITY else min(STACK_BYTES, soft // 2)


@lru_cache(maxsize=1)  # all sequences of a request ask in a row
def _key(constraint: StructuredOutput) -> bytes:
    """Equal for constraints that compile to the same grammar."""
    parts = hashlib.sha256(constraint.kind.value.encode())
    for text in (constraint.value, *constraint.choices):
        encoded = text.encode()
        parts.update(len(encoded).to_bytes(8, "big"))
        parts.update(encoded)
    return parts.digest()

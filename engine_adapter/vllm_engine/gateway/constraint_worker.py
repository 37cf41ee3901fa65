"""The process that compiles constraints, so that one that takes too long can be given up.

llguidance compiles in one call that nothing interrupts, and takes what memory it needs. Here the
kernel ends such a call with its process: by a timer of CPU time, or because memory or stack is
refused.
`constraint_checker` starts the process and talks to it. It imports neither torch nor vLLM.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from engine_adapter.seam.types import ConstraintKind
from engine_adapter.vllm_engine.grammars import matcher_limits, serialized
from engine_adapter.vllm_engine.heap import allocated_bytes
from engine_adapter.vllm_engine.panics import panics_as_errors

_NICENESS = 5
"""The engine's steps go first where cores are short."""


def main() -> None:
    """Reads the tokenizer, then answers one constraint after another until its input ends."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    setup = read_frame(requests)
    if setup is None:
        return
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        compiler = _Compiler(**setup["vocabulary"])
    except Exception as error:
        write_frame(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    base = _address_space()
    limit = base + setup["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    stack = setup["stack_bytes"]
    # For the main thread, which compiles, this limit holds at once.
    resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))
    write_frame(answers, {"error": None})
    while (request := read_frame(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, setup["cpu_seconds"])
        reason, size = compiled(compiler, ConstraintKind(request["kind"]), request["value"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Memory that is not given back would count for the next constraint.
        retires = _address_space() - base > setup["memory_bytes"] // 2
        write_frame(answers, {"reason": reason, "retires": retires, "size": size})


def compiled(compiler: Any, kind: ConstraintKind, value: str) -> tuple[str | None, int]:
    """Why a constraint cannot be enforced, `None` if it can be; and the bytes that it takes.

    One that needs too much memory ends the process.
    """
    try:
        with panics_as_errors():
            result: tuple[str | None, int] = compiler.compile(kind, value)
            return result
    except MemoryError:
        # As llguidance ends it, so that the gateway says that the constraint is too complex.
        os.abort()
    except Exception as error:
        return f"it cannot be compiled: {type(error).__name__}: {error}", 0


class _Compiler:
    def __init__(
        self, tokenizer: str, vocab_size: int, eos_token_id: int | None, **json_rules: bool
    ) -> None:
        import llguidance

        self._matcher = llguidance.LLMatcher
        self._tokenizer = llguidance.LLTokenizer(
            tokenizer, n_vocab=vocab_size, eos_token=eos_token_id
        )
        self._json_rules = json_rules

    def compile(self, kind: ConstraintKind, value: str) -> tuple[str | None, int]:
        """As `compiled`, up to the constraint's first token."""
        try:
            grammar = serialized(kind, value, **self._json_rules)
        except (ValueError, KeyError, TypeError) as error:
            return f"Invalid grammar specification: {error}", 0
        # Without a tokenizer first: then tokens that are not text cannot be named.
        reason = self._matcher.validate_grammar(grammar, None, limits=matcher_limits())
        bytes_before, size = allocated_bytes(), 0
        if not reason:
            matcher = self._matcher(self._tokenizer, grammar, log_level=0, limits=matcher_limits())
            if not matcher.is_error():
                matcher.compute_bitmask()
            reason = matcher.get_error()
            size = max(0, allocated_bytes() - bytes_before)
        return f"Grammar error: {reason}" if reason else None, size


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; `None` at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    frame: dict[str, Any] = json.loads(stream.read(int.from_bytes(head, "big")))
    return frame


def write_frame(stream: BinaryIO, frame: dict[str, Any]) -> None:
    """Sends a message."""
    stream.write(encode_frame(frame))
    stream.flush()


def encode_frame(frame: dict[str, Any]) -> bytes:
    """A message: its length in four bytes, then its JSON."""
    body = json.dumps(frame).encode()
    return len(body).to_bytes(4, "big") + body


def _address_space() -> int:
    """The process's address space, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()

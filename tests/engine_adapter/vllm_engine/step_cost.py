"""`python -m tests.engine_adapter.vllm_engine.step_cost`: what a step costs beside stock vLLM.

Each side is vLLM's engine in a process of its own, without a server. They step in turn, a few
steps each, on the same prompts, and the CPU time of the thread that steps is compared: it does not
count waiting for a core, so the figures hold on a machine that has other work. With one OpenMP
thread, which is the default here, that thread does everything.

The columns are milliseconds a step: medians, and the median of paired differences with its 95 %
bootstrap interval. Steps that read prompts are left out.

With `--profile N` each side is profiled over N steps instead: the functions that draft, verify and
keep books, in microseconds a step, of their own and with what they call. The profiler adds to each
call, so what is made of many calls looks dearer than it is.
"""

import argparse
import cProfile
import os
import pstats
import statistics
import time
from collections.abc import Sequence
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.estimate import paired_difference
from benchmarks.servers import ENVIRONMENT, NAME, speculative_config, vllm_arguments
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.types import NONE

STEPS, WARM_UP, MAX_TOKENS = 10, 60, 160
"""Steps of one turn; steps before the first; tokens of each answer."""

SHOWN = 70
"""Functions that a profile shows."""


class Stepper:
    """One engine, stepped by hand.

    Args:
        method: who drafts for every request.
        specs: what is loaded; `None` is stock vLLM.
    """

    def __init__(
        self, target: str, method: ProposerSpec | None, specs: Sequence[ProposerSpec] | None
    ) -> None:
        os.environ.update({"OMP_NUM_THREADS": "1", **os.environ, **ENVIRONMENT})
        from transformers import AutoTokenizer
        from vllm import AsyncEngineArgs, LLMEngine, SamplingParams

        self._extra: dict[str, Any] | None = None
        if specs is None:
            drafting = speculative_config(method) if method else None
            args = AsyncEngineArgs(
                model=target,
                async_scheduling=False,
                enforce_eager=True,
                speculative_config=drafting,
                **vllm_arguments(),
            )
        else:
            args = self._ours(target, method, specs)
        self._engine = LLMEngine.from_vllm_config(args.create_engine_config())
        self._params = SamplingParams(
            temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, extra_args=self._extra
        )
        self._tokenizer = AutoTokenizer.from_pretrained(target)
        self._number = count()

    def _ours(self, target: str, method: ProposerSpec | None, specs: Sequence[ProposerSpec]) -> Any:
        from engine_adapter.config import EngineConfig
        from engine_adapter.types import SpecDecodeParams, SpecMethod
        from engine_adapter.vllm_engine.gateway import arguments
        from engine_adapter.vllm_engine.wire import to_extra_args

        config = EngineConfig(target, NAME, specs, None, vllm_arguments(), "ERROR")
        arguments.prepare_environment(config)
        if method is not None:
            chosen = SpecMethod(method.name, method.num_speculative_tokens)
            self._extra = to_extra_args(SpecDecodeParams(chosen, pinned=True))
        capacity = max(5, *(spec.num_speculative_tokens for spec in specs), 5)
        return arguments.engine_args(config, capacity, None)

    def run(self, steps: int, streams: int) -> tuple[list[float], list[int]]:
        """CPU milliseconds and emitted tokens of each of so many decode steps."""
        spent, emitted = [], []
        while len(spent) < steps:
            if not self._engine.has_unfinished_requests():
                self._ask(streams)
                self._engine.step()
            began = time.thread_time()
            outputs = self._engine.step()
            spent.append(1e3 * (time.thread_time() - began))
            emitted.append(len(outputs))
        return spent, emitted

    def _ask(self, streams: int) -> None:
        from benchmarks.compare import mixed_prompts

        prompts = mixed_prompts()
        for _ in range(streams):
            number = next(self._number)
            ids = self._tokenizer.apply_chat_template(
                prompts[number % len(prompts)], add_generation_prompt=True, return_dict=False
            )
            self._engine.add_request(str(number), {"prompt_token_ids": list(ids)}, self._params)


def work(pipe: Any, *arguments: Any) -> None:
    """A side's process: steps when it is told to."""
    stepper = Stepper(*arguments)
    while (asked := pipe.recv()) is not None:
        pipe.send(stepper.run(*asked)[0])
    os._exit(0)  # vLLM's own way out takes seconds


def profile(
    target: str,
    method: ProposerSpec | None,
    specs: Sequence[ProposerSpec] | None,
    streams: int,
    steps: int,
) -> None:
    """A side's process: prints where the CPU time of its steps goes."""
    stepper = Stepper(target, method, specs)
    stepper.run(WARM_UP, streams)
    profiler = cProfile.Profile(time.thread_time)
    profiler.runcall(stepper.run, steps, streams)
    profiler.create_stats()
    found = []
    for (file, _, name), (_, calls, own, whole, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if any(folder in file for folder in ("/engine_adapter/", "/spec_decode/", "/v1/sample/")):
            place = f"{Path(file).stem}.{name}"
            found.append((1e6 * whole / steps, 1e6 * own / steps, calls / steps, place))
    for whole_us, own_us, calls_a_step, place in sorted(found, reverse=True)[:SHOWN]:
        print(f"| `{place}` | {calls_a_step:.1f} | {own_us:.0f} | {whole_us:.0f} |", flush=True)
    os._exit(0)


def compare(
    target: str,
    method: ProposerSpec | None,
    sides: dict[str, Sequence[ProposerSpec] | None],
    streams: int,
    rounds: int,
) -> None:
    """Prints a line for each side; the first is what the others are compared with."""
    spawn = get_context("spawn")
    pipes = {}
    for side, specs in sides.items():
        pipes[side], theirs = spawn.Pipe()
        spawn.Process(target=work, args=(theirs, target, method, specs), daemon=False).start()
    for pipe in pipes.values():
        pipe.send((WARM_UP, streams))
        pipe.recv()
    medians: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides) if number % 2 else reversed(sides):
            pipes[side].send((STEPS, streams))
            medians[side].append(statistics.median(pipes[side].recv()))
    base = next(iter(sides))
    name = method.name if method else NONE
    for side, values in medians.items():
        added = paired_difference(values, medians[base])
        shown = "" if side == base else added.text(2, "+")
        print(f"| `{name}` | {streams} | {side} | {statistics.median(values):.2f} | {shown} |")
    for pipe in pipes.values():
        pipe.send(None)


def main() -> None:
    """Reads the command line and compares every method that it names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--proposer", action="append", default=[], metavar="JSON")
    parser.add_argument("--method", action="append", metavar="NAME")
    parser.add_argument("--side", action="append", choices=("stock", "one", "all"))
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--profile", type=int, metavar="STEPS")
    options = parser.parse_args()
    from benchmarks.targets import target_path
    from server.settings.sources import load_settings

    words = [word for one in options.proposer for word in ("--proposer", one)]
    specs = load_settings(words, {}).proposer
    by_name = {spec.name: spec for spec in specs}
    for name in options.method or [NONE, *by_name]:
        method = by_name.get(name)
        every = {"stock": None, "one": [method] if method else [], "all": specs}
        sides = {side: every[side] for side in options.side or every}
        target = target_path(options.target)
        if not options.profile:
            compare(target, method, sides, options.streams, options.rounds)
            continue
        for side, loaded in sides.items():
            print(f"**{name}, {side}**")
            arguments = (target, method, loaded, options.streams, options.profile)
            process = get_context("spawn").Process(target=profile, args=arguments)
            process.start()
            process.join()


if __name__ == "__main__":
    main()

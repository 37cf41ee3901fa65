"""The CPU time of an engine step, compared with stock vLLM.

Each side is a vLLM engine in a process of its own, without a server. The sides run in turn, a few
steps each, on the same prompts, and the CPU time of the stepping thread is compared. CPU time does
not count waiting for a core, so the figures are valid on a machine that has other work. With one
OpenMP thread, which is the default here, the stepping thread does all the work.

Columns are CPU milliseconds per step: the median over rounds, and the median of paired differences
from the first side with its 95 % bootstrap interval; then the same of the part outside the models
(`times`), as if the models of both sides took the same time. Steps that start requests are
left out. Two equal processes can differ for as long as they run, so `--starts` starts all of them
several times.

With `--profile` each side is profiled instead: calls per step, and own and cumulative microseconds
per step, of the functions that draft, verify and count. The profiler adds time to each call, so a
function that makes many calls looks slower than it is.
"""

import cProfile
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.profiles import profile_rows
from benchmarks.servers import ENVIRONMENT, NAME, speculative_config, vllm_arguments
from benchmarks.sides import DEFAULT_SIDES, Side, loaded_specs, specs_by_name, supported_sides
from benchmarks.step.times import ModelTime, StepTime, table_rows
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.config import EngineConfig, draft_capacity
from engine_adapter.seam.types import SpecDecodeParams, SpecMethod

STEPS, WARM_UP, MAX_TOKENS = 10, 60, 160
"""Steps of one turn; steps before the first turn; tokens of each answer."""

PROFILED = ("/benchmarks/step/cost", "/engine_adapter/", "/spec_decode/", "/v1/sample/", "/gpu/")
"""Parts of file names whose functions a profile shows."""

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What to measure.

    Attributes:
        target: path or id of the model.
        specs: the proposers that the side `all` loads.
        methods: names of the measured proposers; `none` is decoding without a proposer.
        sides: the first is the base of the others.
        streams: concurrent requests.
        rounds: turns of each side in one start, `STEPS` steps each.
        starts: how often the engines are started, every second time in the reverse order.
        profile_steps: the number of steps to profile instead; `None` compares.
    """

    target: str
    specs: Sequence[ProposerSpec]
    methods: Sequence[str]
    sides: Sequence[Side] = DEFAULT_SIDES
    streams: int = 1
    rounds: int = 60
    starts: int = 1
    profile_steps: int | None = None


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One engine of a comparison; it is sent to the engine's process.

    Attributes:
        target: path or id of the model.
        method: the proposer that drafts for every request, if any.
        specs: the loaded proposers; `None` is stock vLLM.
        runner_v2: whether stock vLLM runs its model runner V2.
    """

    target: str
    method: ProposerSpec | None
    specs: Sequence[ProposerSpec] | None
    runner_v2: bool = False


class Stepper:
    """An engine in this thread, stepped by its caller."""

    def __init__(self, setup: EngineSetup) -> None:
        from transformers import AutoTokenizer
        from vllm import LLMEngine, SamplingParams

        extra_args, args = _stock(setup) if setup.specs is None else _specgate(setup, setup.specs)
        self._engine: Any = LLMEngine.from_vllm_config(args.create_engine_config())
        self._model_time = ModelTime(self._engine)
        self._params = SamplingParams(
            temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, extra_args=extra_args
        )
        self._tokenizer: Any = AutoTokenizer.from_pretrained(setup.target)
        self._number = count()

    def run(self, steps: int, streams: int) -> list[StepTime]:
        """The times of each of `steps` decode steps with `streams` requests."""
        spent: list[StepTime] = []
        while len(spent) < steps:
            if not self._engine.has_unfinished_requests():
                self._add_requests(streams)
                self._engine.step()
            self._model_time.take_ms()
            began = time.thread_time()
            self._engine.step()
            total_ms = 1e3 * (time.thread_time() - began)
            spent.append(StepTime(total_ms, self._model_time.take_ms()))
        return spent

    def _add_requests(self, streams: int) -> None:
        from benchmarks.compare import mixed_prompts

        prompts = mixed_prompts()
        for _ in range(streams):
            number = next(self._number)
            ids = self._tokenizer.apply_chat_template(
                prompts[number % len(prompts)], add_generation_prompt=True, return_dict=False
            )
            self._engine.add_request(str(number), {"prompt_token_ids": list(ids)}, self._params)


def _stock(setup: EngineSetup) -> tuple[None, Any]:
    """`extra_args` of stock vLLM's requests, and its engine arguments."""
    from vllm import AsyncEngineArgs

    arguments = vllm_arguments()
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(setup.runner_v2))
    if setup.runner_v2:
        from engine_adapter.vllm_engine.worker import v2_on_cpu

        arguments["worker_cls"] = f"{v2_on_cpu.__name__}.CPUWorker"
    return None, AsyncEngineArgs(
        model=setup.target,
        async_scheduling=False,
        enforce_eager=True,
        speculative_config=speculative_config(setup.method) if setup.method else None,
        **arguments,
    )


def _specgate(
    setup: EngineSetup, specs: Sequence[ProposerSpec]
) -> tuple[dict[str, Any] | None, Any]:
    """`extra_args` of Specgate's requests, and its engine arguments."""
    from engine_adapter.vllm_engine.gateway import arguments
    from engine_adapter.vllm_engine.wire import to_extra_args

    config = EngineConfig(setup.target, NAME, specs, None, vllm_arguments(), "ERROR")
    arguments.prepare_environment(config)
    extra_args = None
    if setup.method is not None:
        spec_method = SpecMethod(setup.method.name, setup.method.num_speculative_tokens)
        extra_args = to_extra_args(SpecDecodeParams(spec_method, pinned=True))
    capacity = draft_capacity(specs, None)
    return extra_args, arguments.engine_args(config, capacity, None)


def measure_steps(plan: StepPlan, print_line: PrintLine) -> None:
    """Compares, or profiles, the steps of each method of the plan.

    Args:
        plan: what to measure.
        print_line: receives the rows of the tables. A profile's rows are printed by the profiled
            process.

    Raises:
        ValueError: a method is not among the proposers.
        RuntimeError: an engine failed.
    """
    # Read when torch and vLLM are imported; the engines' processes inherit it.
    # vLLM's n-gram proposer gives OpenMP numba's number of threads, for the target too.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    os.environ.update({**threads, **os.environ, **ENVIRONMENT})
    for name, method in specs_by_name(plan.methods, plan.specs).items():
        setups = {
            side: EngineSetup(
                plan.target,
                method,
                _loaded(side, method, plan.specs),
                runner_v2=side == Side.STOCK_V2,
            )
            for side in supported_sides(plan.sides, method)
        }
        if plan.profile_steps is None:
            rounds = _step_in_turn(setups, plan)
            for row in table_rows(name, plan.streams, rounds):
                print_line(row)
        else:
            for side, setup in setups.items():
                print_line(f"**{name}, {side}**")
                _profile_in_process(setup, plan.streams, plan.profile_steps)


def _loaded(
    side: Side, method: ProposerSpec | None, specs: Sequence[ProposerSpec]
) -> Sequence[ProposerSpec] | None:
    stock = side in {Side.STOCK, Side.STOCK_V2}
    return None if stock else loaded_specs(side, method, specs)


def _step_in_turn(setups: Mapping[Side, EngineSetup], plan: StepPlan) -> dict[Side, list[StepTime]]:
    """For each side, the median times of a step in each round of each start."""
    medians: dict[Side, list[StepTime]] = {side: [] for side in setups}
    sides = list(setups)
    for start in range(plan.starts):
        order = reversed(sides) if start % 2 else sides
        with _engines({side: setups[side] for side in order}) as pipes:
            for side in sides:
                _step(pipes[side], side, WARM_UP, plan.streams)
            for number in range(plan.rounds):
                for side in sides if number % 2 else reversed(sides):
                    spent = _step(pipes[side], side, STEPS, plan.streams)
                    medians[side].append(
                        StepTime(*map(statistics.median, zip(*spent, strict=True)))
                    )
    return medians


@contextmanager
def _engines(setups: Mapping[Side, EngineSetup]) -> Iterator[dict[Side, Connection]]:
    """Pipes to an engine process for each setup; a process ends when its pipe is closed."""
    spawn = get_context("spawn")
    pipes: dict[Side, Connection] = {}
    try:
        for side, setup in setups.items():
            pipes[side], theirs = spawn.Pipe()
            spawn.Process(target=_serve_steps, args=(theirs, setup), daemon=False).start()
            theirs.close()  # otherwise the end of the process would not close the pipe
        yield pipes
    finally:
        for pipe in pipes.values():
            pipe.close()


def _step(pipe: Connection, side: Side, steps: int, streams: int) -> list[StepTime]:
    """`Stepper.run` in the side's process."""
    try:
        pipe.send((steps, streams))
        spent: list[StepTime] = pipe.recv()
    except (EOFError, ConnectionError):
        raise RuntimeError(f"the engine of {side} failed") from None
    return spent


def _serve_steps(pipe: Connection, setup: EngineSetup) -> None:
    """An engine's process: steps on request until the pipe is closed."""
    stepper = Stepper(setup)
    with suppress(EOFError):
        while True:
            steps, streams = pipe.recv()
            pipe.send(stepper.run(steps, streams))
    os._exit(0)  # vLLM's own shutdown takes seconds


def _profile_in_process(setup: EngineSetup, streams: int, steps: int) -> None:
    process = get_context("spawn").Process(target=_profile, args=(setup, streams, steps))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError("the profiled engine failed")


def _profile(setup: EngineSetup, streams: int, steps: int) -> None:
    """An engine's process: prints where the CPU time of its steps goes."""
    stepper = Stepper(setup)
    stepper.run(WARM_UP, streams)
    profiler = cProfile.Profile(time.thread_time)
    profiler.runcall(stepper.run, steps, streams)
    profiler.create_stats()
    for row in profile_rows(profiler, steps, rows=70, files=PROFILED):
        print(row, flush=True)
    os._exit(0)  # vLLM's own shutdown takes seconds

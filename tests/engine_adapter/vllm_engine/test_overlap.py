"""What of a step runs beside the device: steps on a device whose passes take stated times.

With `pytest -s -m prove` the table of docs/lab/gpu.md. The times are of this machine: run
it alone. A step that waited where it need not would take the sum of the device's time and Python's.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import NONE, SpecDecodeParams, SpecMethod
from tests.engine_adapter.proposers.eagle_heads import eagle3
from tests.engine_adapter.vllm_engine.architectures.architecture import Architecture
from tests.engine_adapter.vllm_engine.architectures.small_models import head_config, write_model
from tests.engine_adapter.vllm_engine.support.device_clock import DeviceClock
from tests.engine_adapter.vllm_engine.support.runner_texts import PROMPTS

pytestmark = [
    pytest.mark.prove,
    pytest.mark.engine,
    pytest.mark.timeout(1800),
    # In this process vLLM looks through the modules of torch.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

K, CONTEXT, PROMPT = 3, 1024, 48
TARGET_S, HEAD_S = 5e-3, 0.5e-3
"""What a pass takes on the device."""

ROWS = (1, 16, 64)
METHODS = (NONE, "ngram", "eagle3")
WARM_UP, ROUNDS, STEPS = 15, 3, 60

LIMITS = {NONE: 1.1, "ngram": 1.2, "eagle3": 1.3}
"""The longest step, as a multiple of the longer of the device's time and Python's.

The device looks up, and a head has drafted before, so that the device works while Python reads the
tokens. Where Python takes as long as the device, noise moves both sides.
"""


class Steps:
    """An engine in this thread, whose models' passes take their time on a device.

    Args:
        target: folder of the target.
        head: folder of its EAGLE-3 head.
        is_async: steps are scheduled asynchronously.
        clock: of the device.
    """

    def __init__(self, target: str, head: str, *, is_async: bool, clock: DeviceClock) -> None:
        from vllm import LLMEngine

        from engine_adapter.vllm_engine.gateway import arguments

        specs = parse_specs(
            [
                {"name": "ngram", "num_speculative_tokens": K, "prompt_lookup_min": 1},
                {"name": "eagle3", "num_speculative_tokens": K, "model": head},
                {"name": "self", "method": "draft_model", "model": target},
            ]
        )
        fields = {
            "dtype": "float32",
            "max_model_len": CONTEXT,
            "max_num_seqs": max(ROWS),
            "kv_cache_memory_bytes": 64 << 20,
            "async_scheduling": is_async,
        }
        config = EngineConfig(target, "small", specs, None, fields)
        arguments.prepare_environment(config)
        vllm_config = arguments.engine_args(config, K, None).create_engine_config()
        self._engine: Any = LLMEngine.from_vllm_config(vllm_config)
        self._number = 0
        core: Any = self._engine.engine_core
        executor = core.engine_core.model_executor
        self._runner = executor.driver_worker.worker.model_runner
        self._runner._drafts.drafts_early = is_async  # as on a device
        self._clock = clock
        drafter = self._runner.drafter.host.draft_models["eagle3"]._loaded.model
        for model, seconds in ((self._runner.model, TARGET_S), (drafter, HEAD_S)):
            model.forward = clock.timed(model.forward, seconds)
        self._begun_s: list[float] = []
        self._runner.model.forward = self._noting(self._runner.model.forward)

    def milliseconds(self, method: str, rows: int, *, on_device: bool) -> float:
        """The median time from one pass of the target to the next, while all rows decode.

        Of several rounds, the least counts: other work on the machine can only add time.
        """
        from vllm import SamplingParams

        from engine_adapter.vllm_engine.wire import to_extra_args

        spec = SpecDecodeParams(SpecMethod(method, 0 if method == NONE else K), pinned=True)
        params = SamplingParams(
            temperature=0, max_tokens=CONTEXT, ignore_eos=True, extra_args=to_extra_args(spec)
        )
        ids = [f"{self._number + row}" for row in range(rows)]
        self._number += rows
        for row, request_id in enumerate(ids):
            # A few tokens in many orders: a lookup proposes for every row.
            tokens = [64 + (place * (row + 3)) % 61 for place in range(PROMPT)]
            self._engine.add_request(request_id, {"prompt_token_ids": tokens}, params)
        self._clock.is_on = on_device
        self._begun_s.clear()
        last = WARM_UP + ROUNDS * STEPS
        while len(self._begun_s) <= last:
            self._engine.step()
        self._clock.is_on = False
        self._engine.abort_request(ids)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        seconds = np.diff(self._begun_s[WARM_UP : last + 1]).reshape(ROUNDS, STEPS)
        return 1e3 * float(np.median(seconds, axis=1).min())

    def texts(self, method: str, temperature: float, *, early: bool) -> tuple[list[list[int]], int]:
        """The tokens of 20 requests that a proposer drafts for, and how many steps these took.

        A step counts once for each request.
        """
        from vllm import SamplingParams

        from engine_adapter.vllm_engine.wire import to_extra_args

        self._runner._drafts.drafts_early = early
        spec = SpecDecodeParams(SpecMethod(method, K), pinned=True)
        for row, prompt in enumerate(2 * PROMPTS):
            params = SamplingParams(
                temperature=temperature,
                seed=row,
                max_tokens=100,
                ignore_eos=True,
                extra_args=to_extra_args(spec),
            )
            self._engine.add_request(f"{early}-{row:02}", prompt, params)
        texts: dict[str, list[int]] = {}
        num_steps = 0
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            num_steps += len(outputs)
            texts |= {output.request_id: list(output.outputs[0].token_ids) for output in outputs}
        return [texts[name] for name in sorted(texts)], num_steps

    def _noting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The target's pass; notes when each begins."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._begun_s.append(time.perf_counter())
            return call(*args, **kwargs)

        return run

    def stop(self) -> None:
        """Ends the engine."""
        self._engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The folders of a small target and of its EAGLE-3 head."""
    folder = tmp_path_factory.mktemp("overlap")
    llama = Architecture("llama", "llama")
    head = eagle3(head_config(llama), aux_layers=(0, 1), draft_vocabulary=None)
    return write_model(llama, folder / "target"), head.write(folder / "head")


def measured(
    models: tuple[str, str], cases: Sequence[tuple[str, int]], *, is_async: bool
) -> Iterator[tuple[float, float]]:
    """For each method and rows: milliseconds of a step without and with the device's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        clock = DeviceClock()
        steps = Steps(*models, is_async=is_async, clock=clock)
        clock.install(patch)
        for method, rows in cases:
            yield (
                steps.milliseconds(method, rows, on_device=False),
                steps.milliseconds(method, rows, on_device=True),
            )
        steps.stop()


@pytest.mark.parametrize(
    ("method", "temperature", "most_more"), [("self", 0.4, 0.02), ("ngram", 0.0, 0.1)]
)
def test_early_drafts_change_no_text_and_are_accepted_as_often(
    method: str, temperature: float, most_more: float
) -> None:
    """The target's drafts are the likeliest tokens, its samples are not always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        models = str(model_path("target")), str(model_path("eagle3"))
        steps = Steps(*models, is_async=True, clock=DeviceClock())
        after, num_after = steps.texts(method, temperature, early=False)
        before, num_before = steps.texts(method, temperature, early=True)
        steps.stop()
    assert before == after
    assert len(before) == 20
    print(f"{method}: {num_after} steps of a row, with early drafts {num_before}")
    assert num_before == pytest.approx(num_after, rel=most_more)
    assert 20 * 27 < num_after < 20 * 90, "all drafts are accepted, or none"


def test_a_step_takes_little_longer_than_the_device_or_python(models: tuple[str, str]) -> None:
    cases = [(method, rows) for method in METHODS for rows in ROWS]
    synchronous = list(measured(models, cases, is_async=False))
    late = list(measured(models, cases, is_async=True))
    lines = ["| proposer | rows | device | Python | synchronous | asynchronous | ratio |"]
    lines.append("|---|---|---|---|---|---|---|")
    ratios = {}
    for case, (host, together), (_, beside) in zip(cases, synchronous, late, strict=True):
        device = 1e3 * (TARGET_S + (K * HEAD_S if case[0] == "eagle3" else 0))
        ratios[case] = beside / max(device, host)
        figures = " | ".join(f"{value:.2f}" for value in (device, host, together, beside))
        lines.append(f"| `{case[0]}` | {case[1]} | {figures} | {ratios[case]:.2f} |")
    print("", *lines, sep="\n")
    assert all(ratio <= LIMITS[method] for (method, _), ratio in ratios.items()), ratios

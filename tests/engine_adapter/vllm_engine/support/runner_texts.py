"""Stock vLLM's answers on one of its model runners, in a process of its own."""

import os
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any

from demo import model_path
from tests.engine_adapter.vllm_engine.support.interpreted import take_any_mask

V1, V2, INTERPRETED = "V1", "V2", "V2 interpreted"
"""The runners; the last one has Triton's interpreter in place of the twins for CPUs."""

TIMEOUT_S = 800

LIMITS: dict[str, Any] = {
    "block_size": 32,
    "kv_cache_memory_bytes": 4 << 20,  # less than all texts need: some requests are preempted
    "max_model_len": 256,
    "max_num_batched_tokens": 48,  # less than the longest prompt: it is computed in parts
    "max_num_seqs": 8,
}

PREAMBLE = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\n" * 3
PROMPTS = [
    *("def fibonacci(n):", "class Stack:\n    def push(self, item):\n", "import os\n\nprint("),
    *(PREAMBLE, PREAMBLE + "def multiply(a, b):\n", PREAMBLE + "def divide(a, b):\n"),
    "for i in range(10):\n    print(i)\nfor i in range(10):\n",
    *('"""A module of', "Explain a list in Python.", "x = [1, 2, 3]\ny = [4, 5, 6]\nz ="),
]


def answers(runner: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answer to each prompt with each of the `requests`, which are sampling parameters.

    All prompts of one request are one batch. The last answer has the counts of vLLM's metrics.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_answers, runner, requests).result(TIMEOUT_S)


def _answers(runner: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner != V1))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["OMP_NUM_THREADS"] = "1"  # sums in one order, on any machine
    arguments = dict(LIMITS)
    if runner == V2:
        module = import_module("engine_adapter.vllm_engine.worker.v2_on_cpu")
        arguments["worker_cls"] = f"{module.__name__}.CPUWorker"
    if runner == INTERPRETED:
        _pretend_backend()
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = LLM(
        str(model_path("target")),
        dtype="float32",
        enforce_eager=True,
        seed=0,
        async_scheduling=False,
        disable_log_stats=False,
        **arguments,
    )
    found: list[dict[str, Any]] = []
    for fields in requests:
        fields = dict(fields)
        if regex := fields.pop("regex", None):
            fields["structured_outputs"] = StructuredOutputsParams(regex=regex)
        for output in llm.generate(PROMPTS, SamplingParams(**fields), use_tqdm=False):
            answer = output.outputs[0]
            found.append(
                {
                    "tokens": list(answer.token_ids),
                    "logprobs": _values(answer.logprobs),
                    "prompt_logprobs": _values(output.prompt_logprobs),
                }
            )
    counts = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    runner_module = type(llm.llm_engine.model_executor.driver_worker.worker.model_runner).__module__
    return [*found, {**counts, "runner": runner_module}]


def _values(positions: Any) -> list[dict[int, tuple[float, int]]] | None:
    """At each position, log probability and rank of each returned token."""
    if positions is None:
        return None
    return [
        {token: (value.logprob, value.rank) for token, value in (at or {}).items()}
        for at in positions
    ]


def _pretend_backend() -> None:
    """Gives PyPI's Triton a backend for CPUs by name, so that vLLM takes it, and interprets."""
    os.environ["TRITON_INTERPRET"] = "1"
    take_any_mask()
    backends = import_module("triton.backends").backends
    driver = type("Driver", (), {"is_active": staticmethod(lambda: True)})
    backends["cpu"] = type("Backend", (), {"driver": driver, "compiler": None})
    # Its kernel of top_k and top_p does what the interpreter cannot.
    vars(import_module("vllm.v1.sample.ops.topk_topp_sampler"))["HAS_TRITON"] = False

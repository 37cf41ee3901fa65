"""A stage: stock vLLM writes its greedy texts, with which Specgate's are compared.

python -m benchmarks.gpu_check.stock_stage TASK
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.plan import LOGGED, EngineTask
from benchmarks.gpu_check.prompts import read_prompts
from benchmarks.servers import ENVIRONMENT


def main(text: str) -> None:
    """Runs the task, an `EngineTask` as JSON."""
    task = EngineTask.from_json(text)
    Path(task.stock_texts).unlink(missing_ok=True)  # of an earlier check
    # Read when vLLM is imported. The log is for people here.
    os.environ.update({**ENVIRONMENT, **LOGGED})
    from vllm import AsyncEngineArgs, LLMEngine, SamplingParams

    prompts = read_prompts(task.target, task.prompts)
    arguments = AsyncEngineArgs(model=task.target, async_scheduling=False, **task.arguments)
    engine = LLMEngine.from_engine_args(arguments)
    params = SamplingParams(temperature=0, max_tokens=task.max_tokens, ignore_eos=True)
    began = time.perf_counter()
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), {"prompt_token_ids": list(prompt)}, params.clone())
    texts: dict[int, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                completions: Any = output.outputs
                texts[int(output.request_id.split("-")[0])] = list(completions[0].token_ids)
    seconds = time.perf_counter() - began
    ordered = [texts[i] for i in range(len(prompts))]
    stored_texts = {"of": task.texts_of, "texts": ordered}
    Path(task.stock_texts).write_text(json.dumps(stored_texts), "utf-8")
    row = {"prompts": len(prompts), "tokens/s": sum(map(len, ordered)) / seconds}
    Path(task.result).write_text(json.dumps({"rows": [row], "problems": []}), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Stock vLLM without speculation: texts, how likely it finds other texts, and its own noise.

Noise: in another batch the same prefix gives other log probabilities, because the kernels sum in
another order and round. How far they move is measured, with the same tokens after the same prefix
in four kinds of batches.
"""

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.engine_adapter.vllm_engine.support.processes import vllm_process
from tests.engine_adapter.vllm_engine.support.stock_texts import Prompt, _prepare

LIKELIEST = 20
"""Log probabilities that are read at each position, vLLM's most by default."""

RIVALS = 4
"""Tokens after the best whose distance from it is watched."""

_TIMEOUT_S = 400
"""For the start of the engine, or for a run."""

Text = tuple[int, ...]
Position = Mapping[int, float]
"""Token -> log probability, of the likeliest."""


@dataclass(frozen=True)
class Measured:
    """The greedy texts of some prompts, and the noise at their positions.

    Attributes:
        texts: by prompt, of one batch.
        gaps: at each position, how far the second-best token is behind the best.
        shifts: at each position, the most by which the distance of a rival from the best token
            changes from batch to batch.
    """

    texts: Mapping[Prompt, Text]
    gaps: Sequence[float]
    shifts: Sequence[float]


class StockEngine:
    """A process in which stock vLLM serves one model after another."""

    def __init__(self) -> None:
        self._pool = vllm_process(_prepare)

    def serve(self, model: str, arguments: Mapping[str, Any]) -> None:
        """Replaces the model.

        Args:
            arguments: vLLM's engine arguments.
        """
        self._call(_serve, model, dict(arguments))

    def measure(self, prompts: Sequence[Prompt], max_tokens: int) -> Measured:
        """The greedy texts of all prompts in one batch, and the noise."""
        measured: Measured = self._call(_measure, list(prompts), max_tokens)
        return measured

    def losses(self, texts: Iterable[tuple[Prompt, Text]]) -> list[list[float]]:
        """For each token of some texts, how much less likely it is than the best in its place.

        In log probability, after the tokens before it.

        Args:
            texts: (prompt, text) pairs.
        """
        losses: list[list[float]] = self._call(_losses, list(texts))
        return losses

    def stop(self) -> None:
        """Ends the process."""
        self._pool.shutdown(cancel_futures=True)

    def _call(self, function: Any, *arguments: Any) -> Any:
        return self._pool.submit(function, *arguments).result(timeout=_TIMEOUT_S)


def noise(batches: Sequence[Position]) -> float:
    """The most by which a rival's distance from the best token differs between batches.

    Args:
        batches: the same position in each; the first one says which tokens these are.
    """
    ranked = sorted(batches[0], key=batches[0].__getitem__, reverse=True)
    best, *rivals = ranked[: 1 + RIVALS]
    distances = (
        [seen[best] - seen[rival] for seen in batches if {best, rival} <= seen.keys()]
        for rival in rivals
    )
    return max(max(of_rival) - min(of_rival) for of_rival in distances)


# -- in the engine's process -----------------------------------------------------------------

_engine: Any = None


def _serve(model: str, arguments: dict[str, Any]) -> None:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    global _engine
    if _engine is not None:
        _engine.engine_core.shutdown()
        _engine = None
        gc.collect()
    args = EngineArgs(model=model, enforce_eager=True, async_scheduling=False, **arguments)
    _engine = LLMEngine.from_vllm_config(args.create_engine_config())


def _run(prompts: Sequence[Prompt], max_tokens: int, **options: Any) -> list[Any]:
    """The outputs of all prompts in one batch."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)
    for i, prompt in enumerate(prompts):
        _engine.add_request(str(i), {"prompt_token_ids": list(prompt)}, params)
    made: dict[str, Any] = {}
    while _engine.has_unfinished_requests():
        made |= {output.request_id: output for output in _engine.step()}
    return [made[str(i)] for i in range(len(prompts))]


def _written(prompts: Sequence[Prompt], max_tokens: int) -> list[tuple[Text, list[Position]]]:
    """The texts of one batch, with what was likely at each position."""
    outputs = [o.outputs[0] for o in _run(prompts, max_tokens, logprobs=LIKELIEST)]
    return [(tuple(o.token_ids), [_position(p) for p in o.logprobs]) for o in outputs]


def _read(texts: Sequence[tuple[Prompt, Text]]) -> list[list[Position]]:
    """What is likely at each position of given texts, which are read as prompts of one batch."""
    outputs = _run([prompt + text for prompt, text in texts], 1, prompt_logprobs=LIKELIEST)
    return [
        [_position(p) for p in output.prompt_logprobs[len(prompt) :]]
        for output, (prompt, _) in zip(outputs, texts, strict=True)
    ]


def _position(entries: Mapping[int, Any]) -> Position:
    return {token: entry.logprob for token, entry in entries.items()}


def _measure(prompts: list[Prompt], max_tokens: int) -> Measured:
    together = _written(prompts, max_tokens)
    texts = [(prompt, text) for prompt, (text, _) in zip(prompts, together, strict=True)]
    alone = [_written([prompt], max_tokens)[0] for prompt in prompts]
    runs = [
        [positions for _, positions in together],
        [_while_same(text, *other) for (_, text), other in zip(texts, alone, strict=True)],
        _read(texts),
        [_read([one])[0] for one in texts],
    ]
    gaps: list[float] = []
    shifts: list[float] = []
    for i, (_, text) in enumerate(texts):
        for n in range(len(text)):
            seen = [run[i][n] for run in runs if n < len(run[i])]
            best = sorted(seen[0].values(), reverse=True)
            gaps.append(best[0] - best[1])
            shifts.append(noise(seen))
    return Measured(dict(texts), gaps, shifts)


def _while_same(text: Text, other: Text, positions: list[Position]) -> list[Position]:
    """The positions of another text whose prefix is that of `text`."""
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=True)) if a != b), len(text))
    return positions[: same + 1]


def _losses(texts: list[tuple[Prompt, Text]]) -> list[list[float]]:
    return [
        [
            max(likely.values()) - likely[token]
            for token, likely in zip(text, positions, strict=True)
        ]
        for (_, text), positions in zip(texts, _read(texts), strict=True)
    ]

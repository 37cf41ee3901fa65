"""Trains the target: Muon for the matrices, AdamW for the rest, warm-up, stable rate, decay.

Muon: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024).
Schedule: trapezoidal (warm-up, stable, decay), Haegele et al., arXiv:2405.18392. The stable part
does not depend on the total, so a running training can be shortened or lengthened.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaForCausalLM

from demo.training.architecture import llama_config
from demo.training.packing import IGNORED, Rows, Stream
from demo.training.precision import mixed_precision

SEED = 7
ROW_TOKENS, LONG_ROW_TOKENS = 512, 1024
STEP_TOKENS = 8192
WARMUP_STEPS = 30
DECAY_SHARE = 0.25
# Long rows cost a third more, so only the last steps use them.
LONG_SHARE = 0.08
MUON_RATE, ADAM_RATE, FINAL_RATE = 0.02, 3e-3, 0.02
FOCUSED_CHUNK, LONG_CHUNK = 10_000, 20_000


@dataclass
class TrainingState:
    """Completed steps and their seconds; saved in checkpoints."""

    step: int = 0
    seconds: float = 0.0


def new_model(name: str, seed: int = SEED) -> LlamaForCausalLM:
    """A randomly initialised fp32 model of shape `name`, the same for the same seed."""
    torch.manual_seed(seed)
    config = llama_config(name)
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the 2-D matrices inside the layers, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers." in n]
    vectors = [p for n, p in model.named_parameters() if not (p.ndim == 2 and "layers." in n)]
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(vectors, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate(step: int, total: int) -> float:
    """Factor of the learning rates at `step` of `total`."""
    decay = max(1, int(total * DECAY_SHARE))
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    cool = min(1.0, (total - step) / decay)
    return min(warm, FINAL_RATE + (1 - FINAL_RATE) * cool)


def batches(chunks: Iterator[Rows], skip: int) -> Iterator[Rows]:
    """Batches of `STEP_TOKENS` tokens from chunks of rows, without the first `skip`."""
    seen = 0
    for rows in chunks:
        size = STEP_TOKENS // rows.inputs.shape[1]
        for start in range(0, len(rows.inputs) - size + 1, size):
            seen += 1
            if seen > skip:
                yield Rows(rows.inputs[start : start + size], rows.labels[start : start + size])


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of logits [rows, length, vocabulary] and int64 labels."""
    flat = logits.float().flatten(0, 1)
    return F.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED)


def train_target(
    stream: Stream,
    tokens: int,
    out: Path,
    report: Callable[[LlamaForCausalLM], dict[str, float]],
    every_s: float = 600.0,
) -> LlamaForCausalLM:
    """Train the target on `tokens` tokens and return it; a run resumes from `out/target.pt`.

    Args:
        stream: documents of the training split.
        tokens: total tokens of the run, including padding.
        out: folder of the checkpoint and of `target.jsonl`, which gets one line per report.
        report: computes the held-out figures of the model.
        every_s: seconds between checkpoints.
    """
    model, total = new_model("target"), tokens // STEP_TOKENS
    optims = optimizers(model)
    bases = [group["lr"] for optim in optims for group in optim.param_groups]
    state = _resume(out / "target.pt", model, optims)
    saved = time.monotonic()
    for step, rows in _schedule(stream, state.step, total):
        began = time.monotonic()
        factor = rate(step, total)
        groups = [group for optim in optims for group in optim.param_groups]
        for group, base in zip(groups, bases, strict=True):
            group["lr"] = base * factor
        loss = _step(model, optims, rows)
        state.step, state.seconds = step + 1, state.seconds + time.monotonic() - began
        done = state.step == total
        if state.step % 10 == 0:
            print(f"step {step + 1}/{total} loss {loss:.3f} s {state.seconds:.0f}", flush=True)
        if state.step % 100 == 0 or done:
            _log(out / "target.jsonl", state, loss, report(model))
        if done or time.monotonic() - saved > every_s:
            _save(out / "target.pt", model, optims, state)
            saved = time.monotonic()
    return model


def _schedule(stream: Stream, start: int, total: int) -> Iterator[tuple[int, Rows]]:
    """Step numbers with their batches: all pieces, then focused chunks, then long rows."""
    focused_from = total - int(total * DECAY_SHARE)
    long_from = total - int(total * LONG_SHARE)
    parts = (
        (0, focused_from, stream.rows(ROW_TOKENS)),
        (focused_from, long_from, stream.rows(ROW_TOKENS, FOCUSED_CHUNK, focused=True)),
        (long_from, total, stream.rows(LONG_ROW_TOKENS, LONG_CHUNK, focused=True)),
    )
    for begin, end, chunks in parts:
        if start < end:
            source = batches(chunks, max(0, start - begin))
            yield from ((step, next(source)) for step in range(max(start, begin), end))


def _step(model: LlamaForCausalLM, optims: list[torch.optim.Optimizer], rows: Rows) -> float:
    inputs, labels = torch.from_numpy(rows.inputs), torch.from_numpy(rows.labels)
    model.train()
    with mixed_precision():
        logits = model(input_ids=inputs, use_cache=False).logits
    loss = token_loss(logits, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optim in optims:
        optim.step()
        optim.zero_grad(set_to_none=True)
    return float(loss.detach())


def _resume(path: Path, model: nn.Module, optims: list[torch.optim.Optimizer]) -> TrainingState:
    if not path.exists():
        return TrainingState()
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    for optim, optim_state in zip(optims, saved["optims"], strict=True):
        optim.load_state_dict(optim_state)
    return TrainingState(saved["step"], saved["seconds"])


def _save(
    path: Path, model: nn.Module, optims: list[torch.optim.Optimizer], state: TrainingState
) -> None:
    part = path.with_suffix(".part")
    torch.save(
        {
            "model": model.state_dict(),
            "optims": [optim.state_dict() for optim in optims],
            "step": state.step,
            "seconds": state.seconds,
        },
        part,
    )
    part.replace(path)


def _log(path: Path, state: TrainingState, loss: float, figures: dict[str, float]) -> None:
    line = {
        "step": state.step,
        "tokens": state.step * STEP_TOKENS,
        "seconds": round(state.seconds),
        "loss": round(loss, 4),
        **figures,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)

"""What cannot work ends the start with one line that names its setting, instead of a traceback."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.vllm_engine.load_progress import ProgressWriter
from engine_adapter.vllm_engine.worker.draft_validation import describe_error

_NO_BLOCK_SIZE = "No common block size"
"""How vLLM's message begins if no attention backend has the size of the KV blocks."""

# Below vLLM's logger, whose handler and level the setting `log_level` decides in this process.
log = logging.getLogger("vllm").getChild("specgate")


def log_and_describe(subject: str, error: Exception) -> str:
    """Why something cannot work, in one line; the traceback is logged at the level debug."""
    log.debug("%s cannot work", subject, exc_info=error)
    return describe_error(error)


def fail_start(setting: str, reason: str, progress: ProgressWriter) -> NoReturn:
    """Ends this process, after it has told the gateway why a setting cannot work."""
    progress.refuse(setting, reason)
    raise SystemExit(1)


@contextmanager
def fail_start_on_error(spec: ProposerSpec, progress: ProgressWriter) -> Iterator[None]:
    """Ends this process if the block fails, after it has told the gateway why.

    vLLM would print the traceback of every process that waits for this one.
    """
    try:
        yield
    except torch.AcceleratorError:
        raise
    except Exception as error:
        reason = log_and_describe(f"proposer {spec.name}", error)
        subject = f"{spec.name}: {spec.model}" if spec.model else spec.name
        progress.refuse("proposer", f"{subject}: {reason}")
        raise SystemExit(1) from error


@contextmanager
def fail_start_on_block_size(size: int, progress: ProgressWriter) -> Iterator[None]:
    """The same for a size of KV blocks that no attention backend of the engine has."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith(_NO_BLOCK_SIZE):
            raise
        reason = log_and_describe("block_size", error)
        progress.refuse("block_size", f"{size} does not fit this machine's attention: {reason}")
        raise SystemExit(1) from error


@contextmanager
def fail_start_on_quantization(model_config: Any, progress: ProgressWriter) -> Iterator[None]:
    """The same for a quantized target whose weights vLLM cannot load on this machine.

    The quantization is not blamed for too little memory, nor for files that cannot be read.

    Args:
        model_config: vLLM's; a target that is not quantized is never refused.
        progress: to the gateway.
    """
    method = model_config.quantization
    try:
        yield
    except (torch.AcceleratorError, torch.OutOfMemoryError, MemoryError, OSError):
        raise
    except Exception as error:
        if method is None:
            raise
        reason = log_and_describe(f"the target's quantization {method}", error)
        progress.refuse(
            "model",
            f"{model_config.model}: vLLM cannot load its weights, quantized as {method}, on this "
            f"machine: {reason}",
        )
        raise SystemExit(1) from error


def check_layout(cache_config: Any, progress: ProgressWriter) -> None:
    """Ends this process if the KV of a layer does not lie together, after it has told the gateway.

    vLLM gives layers of its own drafters the strides of such a layout, and none of another class.
    """
    layout = cache_config.get_resolved_kv_cache_layout()
    if not layout.is_layer_compact:
        setting = "VLLM_KV_CACHE_LAYOUT"
        if requested := os.environ.get(setting):
            says, remedy = f"is {requested}", "leave it out, or set it to LBNHC or LBHNC"
        else:
            says, remedy = f"is not set and vLLM chose {layout.name}", "set it to LBNHC or LBHNC"
        reason = f"{says}, with which draft models and heads have not been run; {remedy}"
        fail_start(setting, reason, progress)

"""What cannot work while the engine starts: one line to the gateway, and the process ends."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.vllm_engine.worker.start_failure import (
    check_layout,
    fail_start_on_block_size,
    fail_start_on_error,
    fail_start_on_quantization,
)

SPEC = ProposerSpec("small", "draft_model", 4, "/models/small")
PLAIN = ProposerSpec("words", "ngram", 4)


class Progress:
    """A `ProgressWriter` that keeps refusals."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []

    def refuse(self, setting: str, message: str) -> None:
        self.refused.append((setting, message))


def fails_in(scope: AbstractContextManager[None], error: Exception) -> None:
    with scope:
        raise error


@pytest.mark.parametrize(
    ("spec", "says"),
    [(SPEC, "small: /models/small: KeyError: 'fc'"), (PLAIN, "words: KeyError: 'fc'")],
)
def test_a_failure_is_told_with_the_proposer_and_ends_the_process(
    spec: ProposerSpec, says: str
) -> None:
    progress: Any = Progress()
    with pytest.raises(SystemExit) as caught:
        fails_in(fail_start_on_error(spec, progress), KeyError("fc"))
    assert caught.value.code == 1
    assert progress.refused == [("proposer", says)]


def test_what_works_is_not_refused() -> None:
    progress: Any = Progress()
    with fail_start_on_error(SPEC, progress), fail_start_on_block_size(32, progress):
        pass
    assert progress.refused == []


def test_a_block_size_is_refused_only_for_vllms_own_reason() -> None:
    progress: Any = Progress()
    with pytest.raises(SystemExit):
        fails_in(
            fail_start_on_block_size(16, progress),
            ValueError("No common block size for 16 (CPU: 32)."),
        )
    ((setting, message),) = progress.refused
    assert setting == "block_size"
    assert message.startswith("16 does not fit")
    with pytest.raises(ValueError, match="something else"):
        fails_in(fail_start_on_block_size(16, progress), ValueError("something else"))
    assert len(progress.refused) == 1


def test_a_quantized_target_that_cannot_be_loaded_is_refused_with_its_method() -> None:
    progress: Any = Progress()
    quantized = SimpleNamespace(model="/models/big", quantization="auto_gptq")
    with pytest.raises(SystemExit):
        fails_in(
            fail_start_on_quantization(quantized, progress), ValueError("no kernel\nfor 8 bits")
        )
    ((setting, message),) = progress.refused
    assert setting == "model"
    assert message.startswith("/models/big: ")
    assert message.endswith(
        "quantized as auto_gptq, on this machine: ValueError: no kernel for 8 bits"
    )


def test_a_failure_of_a_target_that_is_not_quantized_is_raised() -> None:
    progress: Any = Progress()
    plain = SimpleNamespace(model="/models/big", quantization=None)
    with pytest.raises(ValueError, match="no kernel"):
        fails_in(fail_start_on_quantization(plain, progress), ValueError("no kernel"))
    assert progress.refused == []


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("gone"),
        MemoryError(),
        OSError("No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_quantization_is_not_blamed_for_memory_and_files(error: Exception) -> None:
    progress: Any = Progress()
    quantized = SimpleNamespace(model="/models/big", quantization="auto_gptq")
    with pytest.raises(type(error)) as caught:
        fails_in(fail_start_on_quantization(quantized, progress), error)
    assert caught.value is error
    assert progress.refused == []


def test_an_accelerator_error_is_not_the_proposers() -> None:
    progress: Any = Progress()
    with pytest.raises(torch.AcceleratorError):
        fails_in(fail_start_on_error(SPEC, progress), torch.AcceleratorError("gone"))
    assert progress.refused == []


def test_the_traceback_is_for_the_log_level_debug() -> None:
    progress: Any = Progress()
    logger = logging.getLogger("vllm").getChild("specgate")
    records: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeper()
    logger.addHandler(handler)
    try:
        for level in (logging.ERROR, logging.DEBUG):
            logger.setLevel(level)
            with pytest.raises(SystemExit):
                fails_in(fail_start_on_error(SPEC, progress), KeyError("fc"))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    (record,) = records
    assert record.exc_info is not None
    assert "small" in record.getMessage()


@pytest.mark.needs_vllm
@pytest.mark.parametrize("reads_layers", [True, False])
def test_a_target_that_cannot_output_its_layers_refuses_the_head(reads_layers: bool) -> None:
    from engine_adapter.vllm_engine.worker.runner import RunnerHooks

    progress: Any = Progress()

    class Upstream:
        model = torch.nn.Linear(1, 1)
        sampler = SimpleNamespace(sampling_states=None)
        lora_config = None
        use_aux_hidden_state_outputs = False

        def load_model(self) -> None:
            """The target is loaded."""

    class Runner(RunnerHooks, Upstream):
        def __init__(self) -> None:
            reader = SPEC if reads_layers else None
            scope: Callable[[ProposerSpec], Any] = lambda spec: fail_start_on_error(spec, progress)  # noqa: E731
            host = SimpleNamespace(
                aux_layers=(1, 2) * reads_layers, aux_reader=reader, fail_start_on_error=scope
            )
            self.drafter: Any = SimpleNamespace(host=host, load_model=lambda target: None)
            self.input_batch: Any = SimpleNamespace(bind_sampling=lambda states: None)

    runner = Runner()
    if not reads_layers:
        runner.load_model()
        assert not runner.use_aux_hidden_state_outputs
        return
    with pytest.raises(SystemExit):
        runner.load_model()
    said = "small: /models/small: RuntimeError: Model does not support EAGLE3 interface"
    assert progress.refused == [("proposer", said)]


@pytest.mark.needs_vllm
def test_layers_without_kv_of_each_position_are_refused_and_attention_is_not() -> None:
    from engine_adapter.vllm_engine import compat
    from engine_adapter.vllm_engine.worker.drafting.weights import LoadedModel

    class MambaMixer:
        def get_kv_cache_spec(self, config: Any) -> Any:
            return object()

    class Attention:
        def get_kv_cache_spec(self, config: Any) -> Any:
            return compat.FullAttentionSpec(
                block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32
            )

    LoadedModel._check_layer(Attention(), Attention().get_kv_cache_spec(None))
    with pytest.raises(ValueError, match="layers of the kind MambaMixer"):
        LoadedModel._check_layer(MambaMixer(), MambaMixer().get_kv_cache_spec(None))


class Layout:
    """vLLM's configuration of a cache whose layout it has chosen."""

    def __init__(self, name: str, *, compact: bool) -> None:
        self._layout = SimpleNamespace(name=name, is_layer_compact=compact)

    def get_resolved_kv_cache_layout(self) -> Any:
        return self._layout


def test_a_layout_with_the_kv_of_a_layer_together_is_not_refused() -> None:
    progress: Any = Progress()
    check_layout(Layout("LBNHC", compact=True), progress)
    assert progress.refused == []


@pytest.mark.parametrize(
    ("given", "begins", "ends"),
    [
        ("BLHNC", "is BLHNC, with which", "; leave it out, or set it to LBNHC or LBHNC"),
        (None, "is not set and vLLM chose BLHNC, with which", "run; set it to LBNHC or LBHNC"),
    ],
    ids=["set", "vLLM's choice"],
)
def test_a_layout_that_no_draft_was_run_with_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, given: str | None, begins: str, ends: str
) -> None:
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)
    if given:
        monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", given)
    progress: Any = Progress()
    with pytest.raises(SystemExit):
        check_layout(Layout("BLHNC", compact=False), progress)
    ((setting, reason),) = progress.refused
    assert setting == "VLLM_KV_CACHE_LAYOUT"
    assert reason.startswith(begins)
    assert reason.endswith(ends)

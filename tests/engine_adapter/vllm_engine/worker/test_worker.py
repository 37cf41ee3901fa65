"""What is ours of a worker's start, on a worker that loads nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine.load_progress import ProgressWriter
from tests.garbage import is_searched

pytestmark = pytest.mark.needs_vllm


def test_a_collection_while_a_model_is_read_skips_what_was_made_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from engine_adapter.vllm_engine.worker import worker

    old_item, searched = ["an object"], []

    class Loading:
        def load_model(self) -> None:
            new_item = ["an object"]
            searched.extend(map(is_searched, (old_item, new_item)))

    class Worker(worker.WorkerHooks, Loading):
        _progress = ProgressWriter(None)
        vllm_config: Any = SimpleNamespace(
            model_config=SimpleNamespace(
                model="m", quantization=None, is_hybrid=False, is_multimodal_model=False
            ),
            lora_config=None,
        )

        def __init__(self) -> None:
            pass

    of_whole_process = ("exit_with_parent", "patch_model_inspection", "patch_rotary_embedding")
    for name in of_whole_process:
        monkeypatch.setattr(worker, name, lambda: None)
    Worker().load_model()
    assert searched == [False, True]

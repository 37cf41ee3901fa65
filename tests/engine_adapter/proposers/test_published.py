"""The published layouts of heads, made of the demo's heads: all pass the checks of a start.

Heads without KV draft here too; `test_layouts` has all of them on a real engine.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from demo import model_path
from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.methods import get_method, parse_spec
from tests.engine_adapter.proposers.heads import Heads, RandomTarget
from tests.engine_adapter.proposers.published import LAYOUTS, write_shards

SIZES = TargetSizes(hidden_size=256, vocab_size=2048, num_layers=6)


def spec_of(method: str, model: str) -> Any:
    return parse_spec({"name": "p", "method": method, "model": model, "num_speculative_tokens": 4})


@pytest.mark.parametrize(
    ("layout", "write"),
    [(layout, Heads.write) for layout in LAYOUTS]
    # FasterDecoding publishes one file.
    + [(layout, write_shards) for layout in LAYOUTS if layout != "fasterdecoding-medusa"],
)
def test_a_published_layout_passes_the_checks(
    layout: str, write: Callable[[Heads, Path], str], tmp_path: Path
) -> None:
    _, method, make = LAYOUTS[layout]
    get_method(method).check(spec_of(method, write(make(), tmp_path / "head")), SIZES)


@pytest.mark.parametrize("layout", ["fasterdecoding-medusa", "untied-mlp"])
def test_a_head_without_kv_drafts_what_the_demos_does(layout: str, tmp_path: Path) -> None:
    demo, method, make = LAYOUTS[layout]
    target = RandomTarget(hidden_size=256, vocab_size=2048)
    host: Any = SimpleNamespace(target=target)
    count = np.full(6, 3, np.int64)
    batch = DraftBatch(
        rows=np.arange(6),
        request_ids=list("abcdef"),
        num_tokens=count,
        num_prompt_tokens=count,
        num_computed=count,
        k=count + 1,
        token_ids=np.arange(18, dtype=np.int32).reshape(6, 3),
        hidden=torch.randn(6, 256, generator=torch.Generator().manual_seed(1)),
    )
    models = (str(model_path(demo)), make().write(tmp_path))
    ours, theirs = (
        get_method(method).create(spec_of(method, model), host).propose(batch).tokens
        for model in models
    )
    assert ours == theirs
    assert len({tuple(row) for row in ours}) > 1


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    _, method, make = LAYOUTS["safeailab-eagle"]
    heads = make()
    heads.tensors["fc.weight"] = Runs()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: cannot be read"):
        get_method(method).check(spec_of(method, heads.write(tmp_path / "head")), SIZES)
    assert not (tmp_path / "ran").exists()

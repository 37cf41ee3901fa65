"""Graphs of whole passes of a draft model: what each pass reads and where it writes.

vLLM's manager of graphs is replaced: a capture keeps the function, and a replay calls it. Real
capture is in `worker/test_gpu_runner.py`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import (
    ForwardInputBuilder,
    ForwardInputs,
)

pytestmark = pytest.mark.needs_vllm

BLOCK, GID, K, VOCABULARY, ROWS = 4, 3, 3, 50, 4
TABLE = np.array([[7, 3, 9], [2, 5, 10], [8, 1, 6], [4, 11, 12]], np.int32)


def following(token: int) -> int:
    """The model's likeliest token after a token."""
    return (7 * token + 2) % VOCABULARY


def slot(row: int, position: int) -> int:
    return int(TABLE[row, position // BLOCK]) * BLOCK + position % BLOCK


@dataclass(frozen=True)
class Shape:
    """vLLM's `BatchExecutionDescriptor`."""

    cg_mode: Any
    num_tokens: int
    num_reqs: int


class Manager:
    """vLLM's `CudaGraphManager`, for 2 rows and for 4."""

    def __init__(self, config: Any, device: Any, mode: Any, decode_query_len: int) -> None:
        self._length = decode_query_len
        self._graphs: dict[Shape, Callable[[Any], None]] = {}

    def capture(self, prepare: Callable[[Shape, bool], Callable[[Any], None]], title: str) -> None:
        for size in (4, 2):
            shape = Shape(compat.CUDAGraphMode.FULL, size * self._length, size)
            prepare(shape, True)(None)
            self._graphs[shape] = prepare(shape, False)
            self._graphs[shape](None)

    def dispatch(self, num_reqs: int, num_tokens: int, length: int, num_loras: int) -> Shape:
        assert (num_tokens, length) == (num_reqs * self._length, self._length)
        fitting = [shape for shape in self._graphs if shape.num_reqs >= num_reqs]
        none = Shape(compat.CUDAGraphMode.NONE, num_tokens, num_reqs)
        return min(fitting, key=lambda shape: shape.num_reqs, default=none)

    def run_fullgraph(self, shape: Shape) -> None:
        self._graphs[shape](None)


@dataclass
class Model:
    """A draft pass that notes what it reads, and the slots that it writes."""

    keeps_states: bool = True
    passes: list[dict[int, tuple[int, int]]] = field(default_factory=list)
    states: list[list[float]] = field(default_factory=list)

    def run(
        self, tokens: torch.Tensor, inputs: ForwardInputs, by_layer: Any, recurrent: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        slots, positions = inputs.slots[GID].tolist(), inputs.positions.tolist()
        written = zip(slots, positions, tokens.tolist(), strict=True)
        self.passes.append({s: (position, token) for s, position, token in written if s >= 0})
        self.states.append([] if recurrent is None else recurrent[:, 0].tolist())
        hidden = tokens[:, None].float()
        return hidden, hidden + 100

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot((7 * hidden[:, 0].long() + 2) % VOCABULARY, VOCABULARY)


class Group:
    """vLLM's `AttentionGroup`."""

    kernel_block_size, supports_draft_decode_metadata_update = None, True
    lengths: list[list[int]]

    def __init__(self, backend: str = "FLASH_ATTN") -> None:
        self.backend, self.lengths = SimpleNamespace(get_name=lambda: backend), []
        self.builder: Any = None

    def get_metadata_builder(self) -> Any:
        return self.builder

    def update_draft_decode_metadata(self, by_layer: Any) -> None:
        self.lengths.append(by_layer["layer"].seq_lens.tolist())


def loaded_model(group: Group, *, is_head: bool = True) -> Any:
    return SimpleNamespace(
        prefix="draft:it",
        device=torch.device("cpu"),
        vllm_config=SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=ROWS)),
        draft_model_config=SimpleNamespace(max_model_len=12),
        draft_attn_groups=[group],
        slot_buffers={GID: torch.zeros(64, dtype=torch.int64)},
        hidden_states=torch.zeros(64, 1) if is_head else None,
        attention_metadata=lambda common, captured: {"layer": common[GID]},
        tp_scope=nullcontext,
    )


@dataclass
class World:
    graphs: Any
    model: Model
    group: Group


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    from engine_adapter.vllm_engine.worker.drafting.decode_graphs import DecodeGraphs

    monkeypatch.setattr(compat, "CudaGraphManager", Manager)
    table = SimpleNamespace(
        block_size=BLOCK,
        get_numpy_array=lambda: TABLE,
        get_device_tensor=lambda num_reqs: torch.from_numpy(TABLE)[:num_reqs],
    )

    def made(group: Group | None = None, *, is_head: bool = True, **of_model: Any) -> World:
        group, model = group or Group(), Model(**of_model)
        builder = ForwardInputBuilder({GID: table}, [GID], torch.device("cpu"))
        graphs = DecodeGraphs(model, loaded_model(group, is_head=is_head), builder, K)
        graphs.capture()
        assert not any(model.passes), "a capture writes no KV"
        model.passes.clear()
        model.states.clear()
        group.lengths.clear()
        return World(graphs, model, group)

    return made


def drafts_after(token: int, count: int) -> list[int]:
    drafts = []
    for _ in range(count):
        token = following(token)
        drafts.append(token)
    return drafts


def test_later_passes_draft_and_write_the_kv_of_all_drafts_but_the_last(make: Any) -> None:
    world = make()
    rows, position, k = np.array([2, 0, 3]), np.array([5, 2, 8]), np.array([3, 2, 1])
    newest = torch.tensor([following(9), following(5), following(1)])
    shape = world.graphs.shape(3, K)
    drafts = world.graphs.draft(
        shape, rows, position, k, newest, torch.tensor([[1.0], [2.0], [3.0]]), None
    )
    assert shape.num_reqs == 4
    assert drafts[0].tolist() == drafts_after(9, 3)
    assert drafts[1, :2].tolist() == drafts_after(5, 2)
    assert drafts[2, 0] == following(1)
    second, third = drafts_after(9, 2), drafts_after(5, 1)
    assert world.model.passes == [
        {slot(2, 5): (5, second[0]), slot(0, 2): (2, third[0])},
        {slot(2, 6): (6, second[1])},
    ]
    assert world.model.states[0][:3] == [1.0, 2.0, 3.0]
    assert world.model.states[1][0] == second[0] + 100, "its own state of the pass before"
    # A row that drafts no more reads what it has read.
    assert world.group.lengths == [[6, 3, 8, 1], [7, 3, 8, 1]]


def test_rows_behind_their_bound_draft_where_the_device_knows(make: Any) -> None:
    world = make()
    rows, bound, k = np.array([0, 1]), np.array([6, 4]), np.array([2, 2])
    args = world.graphs.shape(2, K), rows, bound, k, torch.tensor([4, 5]), torch.zeros(2, 1)
    world.graphs.draft(*args, torch.tensor([2, 0], dtype=torch.int32))
    assert world.model.passes == [{slot(0, 4): (4, 4), slot(1, 4): (4, 5)}]


def unread(emitted: list[list[int]], rejected: list[int]) -> UnreadStep:
    count = len(emitted)
    return UnreadStep(
        np.arange(count),
        np.full(count, K + 1),
        np.full(count, K),
        torch.tensor(emitted),
        np.arange(count)[::-1].copy(),
        torch.tensor(rejected, dtype=torch.int32),
    )


@pytest.mark.parametrize("is_head", [True, False])
def test_a_first_pass_reads_what_the_step_emitted_and_drafts_after_the_accepted(
    make: Any, is_head: bool
) -> None:
    world = make(is_head=is_head)
    # The rows of `emitted` are in another order than those of the batch; 1 and 3 drafts are wrong.
    step = unread([[20, 21, 22, 23, 0], [30, 31, 32, 33, 0]], [1, 3])
    shape = world.graphs.first_shape(2, K)
    drafts = world.graphs.draft_after(
        shape, np.array([3, 1]), np.array([1, 4]), np.array([3, 2]), step
    )
    assert drafts[0].tolist() == drafts_after(32, 3)
    assert drafts[1, :2].tolist() == drafts_after(20, 2)
    first, second, third = world.model.passes
    assert first == {
        **{slot(3, 1 + i): (1 + i, 30 + i) for i in range(4)},
        **{slot(1, 4 + i): (4 + i, 20 + i) for i in range(4)},
    }
    # They overwrite the positions of rejected drafts.
    assert second == {slot(3, 4): (4, following(32)), slot(1, 5): (5, following(20))}
    assert third == {slot(3, 5): (5, drafts_after(32, 2)[1])}
    assert world.group.lengths == [[5, 8], [5, 6], [6, 6]]
    assert world.model.states[1] == ([132.0, 120.0] if is_head else [])


def test_a_row_of_the_graph_without_a_request_writes_nothing(make: Any) -> None:
    world = make()
    step = unread([[20, 21, 22, 23], [30, 31, 32, 33], [40, 41, 42, 43]], [0, 0, 0])
    for _ in range(2):
        world.model.passes.clear()
        rows, start, k = np.array([0, 1, 2]), np.array([0, 1, 2]), np.array([2, 2, 2])
        world.graphs.draft_after(world.graphs.first_shape(3, K), rows, start, k, step)
        assert [len(written) for written in world.model.passes] == [3 * (K + 1), 3]
        # Four rows, then one, in the same buffers.
        step_of_one_row = UnreadStep(
            *(step.rows[:1], step.num_read[:1], step.num_drafts[:1]),
            *(step.emitted, step.source[:1], step.num_rejected[:1]),
        )
        world.model.passes.clear()
        args = np.array([3]), np.array([5]), np.array([3]), step_of_one_row
        world.graphs.draft_after(world.graphs.first_shape(1, K), *args)
        assert [len(written) for written in world.model.passes] == [K + 1, 1, 1]


@pytest.mark.parametrize(
    ("backend", "keeps_states", "expected"),
    [("FLASH_ATTN", True, True), ("FLASHINFER", True, False), ("FLASH_ATTN", False, False)],
)
def test_first_passes_are_graphs_where_the_device_knows_all_that_they_read(
    make: Any, backend: str, keeps_states: bool, expected: bool
) -> None:
    graphs = make(Group(backend), keeps_states=keeps_states).graphs
    assert (graphs.first_shape(2, K) is not None) == expected
    assert graphs.shape(2, K) is not None
    assert graphs.shape(5, K) is None
    assert graphs.first_shape(5, K) is None
    assert graphs.shape(2, K + 1) is graphs.first_shape(2, K + 1) is None, "no place for so many"


def test_attention_must_be_able_to_update_its_metadata_in_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.model_executor.layers.attention.chunked_local_attention import (
        create_chunked_local_attention_backend,
    )
    from vllm.model_executor.layers.attention.static_sink_attention import (
        create_static_sink_attention_backend,
    )
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
    from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    from engine_adapter.vllm_engine.worker.drafting.decode_graphs import can_capture

    def can(backend: Any, num_drafts: int = 2) -> bool:
        builder = backend.get_builder_cls()
        group = Group()
        group.builder = builder.__new__(builder)
        return can_capture(loaded_model(group), num_drafts)

    for backend in FlashAttentionBackend, TritonAttentionBackend, TritonMLABackend:
        assert can(backend)
    assert not can(FlashAttentionBackend, num_drafts=1)
    # Their builders change what is built, and inherit the update.
    assert not can(create_chunked_local_attention_backend(FlashAttentionBackend, 64))
    assert not can(create_static_sink_attention_backend(FlashAttentionBackend, 64))
    monkeypatch.setattr(Group, "supports_draft_decode_metadata_update", False)
    assert not can(FlashAttentionBackend)

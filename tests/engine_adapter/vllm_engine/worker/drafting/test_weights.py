"""What is built around a loaded draft model: attention groups, slots and the sliding window."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat

pytestmark = pytest.mark.needs_vllm

SIZE: dict[str, Any] = {
    "block_size": 32,
    "num_kv_heads": 2,
    "head_size": 64,
    "dtype": torch.float32,
}


class Builder:
    """An attention backend's builder of metadata; the metadata names what it was built from."""

    requires_block_table_width = False

    def __init__(self, spec: Any, layer_names: list[str], config: Any, device: Any) -> None:
        self.layers = tuple(layer_names)

    def build_for_drafting(self, common: Any, index: int) -> Any:
        return common, self.layers


class Backend:
    @classmethod
    def full_cls_name(cls) -> tuple[str, str]:
        return __name__, "Backend"

    @classmethod
    def get_builder_cls(cls) -> type[Builder]:
        return Builder

    @staticmethod
    def get_supported_kernel_block_sizes(spec: Any = None) -> list[int]:
        return [32]


class Layer:
    """A layer of a draft model; with `window`, it has one, and it may read the KV of another."""

    def __init__(self, window: int | None = None, kv_of: str | None = None) -> None:
        self._window = window
        self.kv_sharing_target_layer_name = kv_of

    def get_attn_backend(self) -> type[Backend]:
        return Backend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        if self._window is None:
            return compat.FullAttentionSpec(**SIZE)
        return compat.SlidingWindowSpec(**SIZE, sliding_window=self._window)


Load = Callable[..., Any]


@pytest.fixture
def weights() -> Any:
    """The module; importing it imports vLLM."""
    return import_module("engine_adapter.vllm_engine.worker.drafting.weights")


@pytest.fixture
def load(weights: Any) -> Load:
    """Makes a draft model from its layers and the names of the layers in each KV cache group."""

    def load(layers: dict[str, Layer], *groups: list[str]) -> Any:
        made = object.__new__(weights.LoadedModel)
        made.vllm_config = SimpleNamespace(
            compilation_config=SimpleNamespace(
                static_forward_context=layers, max_cudagraph_capture_size=None
            )
        )
        made.device, made.max_num_tokens, made._is_eager = torch.device("cpu"), 8, False
        made._layer_names = set(layers)
        spec = compat.FullAttentionSpec(**SIZE)
        of_groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=names) for names in groups]
        config = SimpleNamespace(kv_cache_groups=of_groups)
        made.initialize_attn_backend(config, [32] * len(groups))
        return made

    return load


def test_layers_get_the_metadata_of_their_own_group_and_window(load: Load) -> None:
    layers = {"d.0": Layer(), "d.1": Layer(window=48), "d.2": Layer(), "d.3": Layer(window=48)}
    draft = load(layers, ["t.0"], ["d.0", "d.1", "t.1"], ["d.3", "d.2"])
    assert draft.kv_cache_gids == [1, 2]
    metadata = draft.attention_metadata({1: "first", 2: "second"})
    assert metadata == {
        "d.0": ("first", ("d.0",)),
        "d.1": ("first", ("d.1",)),
        "d.2": ("second", ("d.2",)),
        "d.3": ("second", ("d.3",)),
    }


def test_equal_layers_of_a_group_share_their_metadata(load: Load) -> None:
    draft = load({"d.0": Layer(), "d.1": Layer()}, ["d.1", "t.0", "d.0"])
    metadata = draft.attention_metadata({0: "first"})
    assert metadata["d.0"] is metadata["d.1"]
    assert metadata["d.0"] == ("first", ("d.0", "d.1"))


def test_a_layer_that_reads_the_kv_of_another_has_metadata_and_no_kv(load: Load) -> None:
    draft = load({"d.0": Layer(), "d.1": Layer(kv_of="d.0")}, ["t.0", "d.0", "d.1"])
    assert draft.attention_metadata({0: "first"}).keys() == {"d.0", "d.1"}
    assert draft.layers_with_kv == {"d.0"}


def test_slots_are_those_of_the_layers_group_and_padding_has_none(load: Load) -> None:
    draft = load({"d.0": Layer(), "d.1": Layer()}, ["d.0"], ["d.1"])
    draft.slot_mapping(5, {0: torch.full((5,), 9), 1: torch.full((5,), 9)})
    mapping = draft.slot_mapping(5, {0: torch.tensor([7, 8]), 1: torch.tensor([3, 4])})
    assert mapping["d.0"].tolist() == [7, 8, -1, -1, -1]
    assert mapping["d.1"].tolist() == [3, 4, -1, -1, -1]
    again = draft.slot_mapping(5, {0: torch.tensor([1]), 1: torch.tensor([2])})
    assert again["d.1"].data_ptr() == mapping["d.1"].data_ptr(), "a graph keeps the address"


def test_an_eager_model_reads_values_where_they_are_and_padded_ones_in_a_buffer(load: Load) -> None:
    draft = load({"d.0": Layer()}, ["d.0"])
    buffer, values = torch.zeros(8, dtype=torch.int32), torch.tensor([5, 6], dtype=torch.int32)
    assert draft.placed(buffer, values, 2).data_ptr() == buffer.data_ptr(), "a graph reads a buffer"
    draft._is_eager = True
    assert draft.placed(buffer, values, 2).data_ptr() == values.data_ptr()
    ids = draft.placed(buffer, torch.tensor([7, 8]), 2)
    assert (ids.tolist(), ids.dtype) == ([7, 8], torch.int32), "a draw's tokens are int64"
    assert draft.placed(buffer, values, 3).tolist() == [5, 6, 0]


# -- the window ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"sliding_window": 48}, 48),
        ({"sliding_window": 48, "layer_types": ["sliding_attention"]}, 48),
        ({"sliding_window": 48, "layer_types": ["sliding_attention", "full_attention"]}, None),
        ({"sliding_window": 48, "use_sliding_window": True}, 48),
        ({"sliding_window": 48, "use_sliding_window": False}, None),
        ({"sliding_window": None}, None),
        ({}, None),
    ],
    ids=["not named", "all layers", "some layers", "used", "not used", "none", "unknown"],
)
def test_a_window_of_all_layers_is_that_of_the_model(
    weights: Any, fields: dict[str, Any], window: int | None
) -> None:
    assert weights.window_of_all_layers(SimpleNamespace(**fields)) == window


@dataclass
class Cache:
    sliding_window: int | None
    block_size: int = 32


@dataclass
class Attention:
    backend: str | None = "CHOSEN"
    use_non_causal: bool = False


@dataclass
class Parallel:
    rank: int = 0
    tensor_parallel_size: int = 1


@dataclass
class Config:
    """vLLM's `VllmConfig`, as far as it is read."""

    cache_config: Cache
    parallel_config: Parallel
    attention_config: Attention
    quant_config: Any = "of the target"
    model_config: Any = "of the target"


@pytest.fixture(autouse=True)
def plain_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own asks for the documented fields of its configurations."""
    monkeypatch.setitem(vars(compat), "replace", replace)


def layers_config(weights: Any, window: int | None, config: Config, kind: str) -> Config:
    """The configuration of the layers of a draft model or a head with a window."""
    made = object.__new__(getattr(weights, kind))
    made.vllm_config = config
    made.draft_model_config = SimpleNamespace(hf_text_config=SimpleNamespace(sliding_window=window))
    made._speculative_config = SimpleNamespace(draft_parallel_config=Parallel(rank=0))
    layers: Config = made._layers_config()
    return layers


@pytest.mark.parametrize("of_target", [None, 48, 64])
@pytest.mark.parametrize("own", [None, 48])
def test_a_draft_has_its_own_window_and_backend_and_not_the_targets(
    weights: Any, own: int | None, of_target: int | None
) -> None:
    config = Config(Cache(of_target), Parallel(), Attention())
    layers = layers_config(weights, own, config, "LoadedModel")
    assert layers.cache_config == Cache(own)
    assert layers.attention_config.backend is None
    assert layers.model_config == config.model_config
    assert config.cache_config.sliding_window == of_target, "the target keeps its own"


@pytest.mark.parametrize("rank", [0, 3])
def test_a_draft_model_on_one_rank_has_compiled_code_in_the_folder_of_its_rank(
    weights: Any, rank: int
) -> None:
    """vLLM's folder is named after the configuration's rank, and after the proposer."""
    target = Config(Cache(None), Parallel(rank, tensor_parallel_size=4), Attention())
    layers = layers_config(weights, None, target, "LoadedDraft")
    assert layers.parallel_config == Parallel(rank, tensor_parallel_size=1)
    assert layers.quant_config is None
    assert layers.model_config != target.model_config

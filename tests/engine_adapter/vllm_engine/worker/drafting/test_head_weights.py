"""Heads: the layers that they share with the target, and the bias of a sequential head."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.needs_vllm


@pytest.fixture
def head() -> Any:
    """A head whose Markov head has a bias for three tokens; token i adds i to each."""
    weights = import_module("engine_adapter.vllm_engine.worker.drafting.head_weights")
    made = object.__new__(weights.LoadedBlockHead)
    of_three = torch.tensor([1.0, 2.0, 3.0])
    made.model = SimpleNamespace(
        markov_embed=lambda tokens: tokens[:, None],
        markov_bias=lambda embedded: of_three + embedded,
        draft_id_to_target_id=None,
    )
    return made


def test_a_bias_for_the_whole_vocabulary_stays_as_it_is(head: Any) -> None:
    logits = torch.full((2, 3), 10.0)
    head.add_markov_bias(logits, torch.tensor([3, 1]), torch.tensor([0, 5]))
    assert logits.tolist() == [[11, 12, 13], [16, 17, 18]]


def test_a_head_with_fewer_tokens_has_a_bias_for_these_only(head: Any) -> None:
    """The others cannot be drafted: they keep the logits that vLLM gives them."""
    head.model.draft_id_to_target_id = torch.tensor([1, 1, 3])  # the tokens 1, 2 and 5
    none = float("-inf")
    for _ in range(2):
        logits = torch.tensor([[none, 10.0, 10.0, none, none, 10.0]] * 2)
        head.add_markov_bias(logits, torch.tensor([3, 1]), torch.tensor([0, 5]))
        assert logits.tolist() == [
            [none, 11, 12, none, none, 13],
            [none, 16, 17, none, none, 18],
        ]


# -- shared layers ---------------------------------------------------------------------------


class Model(torch.nn.Module):
    """A target, or a head.

    Args:
        width: of its embeddings.
        has_own: whether the checkpoint has embeddings and an output layer; `None` for MTP layers,
            whose one layer has an output layer, too.
    """

    model: Any
    lm_head: Any

    def __init__(self, *, width: int = 4, has_own: bool | None = None) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(8, width)
        self.model.layers = torch.nn.ModuleList([torch.nn.Module()])
        self.lm_head = torch.nn.Linear(width, 8, bias=False)
        if has_own is None:
            layer = self.model.layers[0]
            layer.shared_head = torch.nn.Module()
            layer.shared_head.head = torch.nn.Linear(width, 8, bias=False)
        else:
            self.has_own_embed_tokens = self.has_own_lm_head = has_own


def shared(head: Model, target: Model) -> tuple[set[str], set[str]]:
    """Which of the target's layers a head takes, and the names of the weights that count."""
    weights = import_module("engine_adapter.vllm_engine.worker.drafting.head_weights")
    made = object.__new__(weights.LoadedHead)
    made.model = head
    made._sizes = {name: 1 for name, _ in head.named_parameters()}
    made._share_ends(target)
    pairs = {
        "embeddings": (head.model.embed_tokens, target.model.embed_tokens),
        "output": (head.lm_head, target.lm_head),
    }
    taken = {name for name, (layer, of_target) in pairs.items() if layer is of_target}
    return taken, set(made._sizes)


BOTH = {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_head_takes_what_its_checkpoint_lacks() -> None:
    assert shared(Model(has_own=False), Model()) == ({"embeddings", "output"}, set())


@pytest.mark.parametrize("has_own", [False, None])
def test_without_any_embeddings_the_head_is_refused(has_own: bool | None) -> None:
    target = Model()
    del target.model.embed_tokens
    with pytest.raises(ValueError, match="neither its checkpoint nor the target has embeddings"):
        shared(Model(has_own=has_own), target)


def test_a_head_keeps_layers_of_its_own_but_equal_ones() -> None:
    head, target = Model(has_own=True), Model()
    assert shared(head, target) == (set(), BOTH)
    with torch.no_grad():
        head.lm_head.weight.copy_(target.lm_head.weight)
    assert shared(head, target) == ({"output"}, {"model.embed_tokens.weight"})


def test_a_head_of_another_width_keeps_its_embeddings() -> None:
    taken = shared(Model(has_own=False), Model(width=6))
    assert taken == ({"output"}, {"model.embed_tokens.weight"})


def test_mtp_layers_take_both_in_every_place() -> None:
    head, target = Model(), Model()
    assert shared(head, target) == ({"embeddings", "output"}, set())
    assert head.model.layers[0].shared_head.head is target.lm_head


def test_a_layer_of_the_target_with_adapters_is_taken_without_them() -> None:
    target, head = Model(), Model(has_own=False)
    plain = target.lm_head
    target.lm_head = torch.nn.Module()
    target.lm_head.base_layer = plain
    shared(head, target)
    assert head.lm_head is plain


def test_sparse_attention_reads_the_targets_buffer() -> None:
    target, head = Model(), Model()
    target.model.topk_indices_buffer = torch.zeros(3)
    head.model.layers[0].topk_indices_buffer = torch.ones(3)
    shared(head, target)
    assert head.model.layers[0].topk_indices_buffer is target.model.topk_indices_buffer


# -- layers that read the target's KV --------------------------------------------------------


def attention(name: str, heads: int, size: int, scale: float) -> Any:
    layer: Any = torch.nn.Module()
    layer.layer_name, layer.num_kv_heads, layer.head_size = name, heads, size
    for part in "k", "v":
        layer.register_buffer(f"_{part}_scale", torch.tensor(scale))
        setattr(layer, f"_{part}_scale_float", scale)
    return layer


def test_a_layer_that_reads_other_kv_has_its_scales() -> None:
    weights = import_module("engine_adapter.vllm_engine.worker.drafting.head_weights")
    layer, source = attention("draft.0", 2, 32, 1.0), attention("target.3", 2, 32, 0.5)
    weights._read_kv_of(layer, source)
    assert layer.kv_sharing_target_layer_name == "target.3"
    assert [float(layer._k_scale), layer._v_scale_float] == [0.5, 0.5]


@pytest.mark.parametrize(("heads", "size"), [(1, 32), (2, 64)])
def test_a_layer_cannot_read_kv_of_another_shape(heads: int, size: int) -> None:
    weights = import_module("engine_adapter.vllm_engine.worker.drafting.head_weights")
    layer, source = attention("draft.0", 2, 32, 1.0), attention("target.3", heads, size, 1.0)
    says = (
        rf"draft\.0 reads KV of 2 heads with 32 numbers; .*target\.3 has {heads} heads with {size}"
    )
    with pytest.raises(ValueError, match=says):
        weights._read_kv_of(layer, source)

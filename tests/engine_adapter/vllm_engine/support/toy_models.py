"""Toy draft models and heads: the real paged code, without weights and forward pass.

A forward pass writes its inputs into the KV slots of the attention metadata, and its predictions
depend on everything that it reads from them. Missing or stale KV therefore changes the drafts, or
fails an assertion when it is read. A model is named `toy/SEED`, a head that combines layers of the
target `toy/SEED/LAYER,LAYER`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from engine_adapter.proposers.draft_options import min_confidence
from engine_adapter.proposers.vocabulary_map import NO_TOKEN, VocabularyMap
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import ForwardInputs
from engine_adapter.vllm_engine.worker.drafting.paged_head import PagedHead
from engine_adapter.vllm_engine.worker.drafting.paged_model import PagedDraftModel

VOCAB = 29
PADDED_VOCAB = 32
TWIN_SEED = 1
"""The toy draft model that mostly agrees with the target."""

UNSURE = 4
"""A toy model is sure of every token but the multiples of this."""

MASK_TOKEN = 3
"""The token of a mask in a block."""

_MODULUS = 1 << 31


def next_state(state: int, token: int) -> int:
    """The hash of a text with one more token."""
    return (state * 1103515245 + token + 12345) % _MODULUS


def states(tokens: Sequence[int], seed: int) -> tuple[int, ...]:
    """A hash of each prefix of `tokens`."""
    return _states(tuple(map(int, tokens)), seed)


@lru_cache(maxsize=10_000)
def _states(tokens: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """The same; a text that grows, as all do, needs only its last tokens' hashes."""
    if not tokens:
        return ()
    whole = (len(tokens) - 1) // 16 * 16
    out = list(_states(tokens[:whole], seed))
    for token in tokens[whole:]:
        out.append(next_state(out[-1] if out else seed, token))
    return tuple(out)


def predictions(tokens: Sequence[int], seed: int) -> list[int]:
    """The token after each prefix of `tokens`."""
    return [(state >> 8) % VOCAB for state in states(tokens, seed)]


def after(token: int) -> int | None:
    """What a toy DSpark head always drafts after this token; `None` if its block decides."""
    return None if token % 3 else (7 * token + 2) % VOCAB


def target_next(tokens: Sequence[int]) -> int:
    """The target's greedy token: the twin's in seven of ten contexts."""
    agreed = predictions(tokens, TWIN_SEED)[-1]
    other = predictions(tokens, 99)[-1]
    return agreed if other % 10 < 7 else (agreed + 1) % VOCAB


def target_states(tokens: Sequence[int], layer: int = 0) -> list[float]:
    """The target's hidden state of each position after a layer; layer 0 means the last one."""
    return [float(state + layer) for state in states(tokens, TWIN_SEED)]


def head_outputs(
    pairs: Sequence[tuple[float, float]], seed: int, layers: Sequence[int]
) -> list[tuple[int, float]]:
    """A head's next token and its own state after each of its (token, state) pairs.

    The token is mostly the twin's if the last state is the target's; otherwise it is a hash of all
    pairs. The head's own states differ from the target's.
    """
    return list(_head_outputs(tuple(pairs), seed, tuple(layers))[0])


@lru_cache(maxsize=10_000)
def _head_outputs(
    pairs: tuple[tuple[float, float], ...], seed: int, layers: tuple[int, ...]
) -> tuple[list[tuple[int, float]], int]:
    """The same, and the hash of all pairs; as above, only the last pairs are new."""
    if not pairs:
        return [], seed
    whole = (len(pairs) - 1) // 16 * 16
    before, folded = _head_outputs(pairs[:whole], seed, layers)
    out = before.copy()
    for token, state in pairs[whole:]:
        folded = next_state(folded, int(token) * 31 + int(state) % 1009)
        target = (int(state) - sum(layers)) // max(len(layers), 1)
        following = next_state(target, int(token))
        hashed = folded >> 8
        out.append(((following >> 8 if hashed % 4 else hashed) % VOCAB, float(following ^ 1)))
    return out, folded


class ToyForward(ABC):
    """Mixed into the real classes; replaces their forward pass."""

    _max_num_tokens: int
    max_model_len: int

    def __init__(self, spec: Any, vllm_config: Any, device: Any, runner: Any) -> None:
        super().__init__(spec, vllm_config, device, runner)  # type: ignore[call-arg]
        seed, *layers = spec.model.split("/")[1:]
        self.name = spec.name
        self.seed = int(seed)
        self.layers = tuple(map(int, layers[0].split(","))) if layers else ()
        self.is_gated = min_confidence(spec) > 0
        self.world: Any = runner.world
        self.stores = [
            np.full((self.world.num_blocks * size, 2), -1.0) for size in self.world.block_sizes
        ]
        self.fed: list[tuple[str, int, int]] = []
        self.passes = 0

    def drafts(self, tokens: Sequence[int], k: int) -> list[int]:
        """Its drafts in a run without switches, the reference: up to where its gate closes."""
        every = self.continuation(tokens, k)
        sure = [token % UNSURE > 0 for token in every]
        return every[: sure.index(False)] if self.is_gated and not all(sure) else every

    @abstractmethod
    def continuation(self, tokens: Sequence[int], k: int) -> list[int]:
        """The k tokens that follow, as it predicts them."""

    @abstractmethod
    def _read_in(self, inputs: ForwardInputs, recurrent: torch.Tensor | None) -> np.ndarray:
        """The content of a position's KV besides the token, [T]."""

    @abstractmethod
    def _committed(self, tokens: Sequence[int]) -> np.ndarray:
        """The correct KV of a row's committed positions, [N, 2]."""

    @abstractmethod
    def _outputs(self, known: np.ndarray) -> list[tuple[int, float]]:
        """Next token and own state after each position."""

    def _forward(
        self, tokens: torch.Tensor, inputs: ForwardInputs, recurrent: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        given = tokens.tolist()
        tokens = self._vocabulary.inputs(tokens)  # type: ignore[attr-defined]
        total, metadata = len(tokens), inputs.metadata[0]
        position = inputs.positions.numpy()
        assert 0 < total <= self._max_num_tokens
        assert (position < self.max_model_len).all(), (
            "the position is outside the draft model's context"
        )
        assert metadata.num_actual_tokens == total == len(position)
        assert metadata.seq_lens.is_contiguous()
        assert inputs.positions.is_contiguous()
        if self.world.early:  # the CPU knows bounds
            assert metadata.max_seq_len >= metadata.seq_lens.max()
            assert (inputs.position >= position).all()
        else:
            assert metadata.max_seq_len == metadata.seq_lens.max()
            assert inputs.position.tolist() == position.tolist()
        assert metadata.max_query_len == metadata.query_start_loc.diff().max()
        read_in = self._read_in(inputs, recurrent)
        for store, gid in zip(self.stores, sorted(inputs.slots), strict=True):
            slots = inputs.slots[gid].numpy()
            assert inputs.metadata[gid].slot_mapping is inputs.slots[gid]
            assert len(slots) == total
            assert inputs.slots[gid].is_contiguous(), "vLLM's kernels read the memory"
            store[slots, 0], store[slots, 1] = tokens.numpy(), read_in
        self.passes += 1
        outputs = np.zeros((total, 2))
        starts = metadata.query_start_loc.numpy()
        for i, row in enumerate(inputs.rows):
            begin, end, seq_len = starts[i], starts[i + 1], int(metadata.seq_lens[i])
            request_id = self.world.batch.req_ids[row]
            committed = self._committed(self.world.requests[request_id].tokens)[:seq_len]
            for gid in inputs.metadata:
                known = self._read(gid, inputs.metadata[gid].block_table_tensor[i], seq_len)
                assert np.array_equal(known[: len(committed)], committed), (
                    f"{request_id} reads stale KV of group {gid}"
                )
            outputs[begin:end] = self._outputs(known)[seq_len - (end - begin) :]
            assert position[begin:end].tolist() == list(range(seq_len - (end - begin), seq_len))
            self.fed += [(request_id, int(position[t]), given[t]) for t in range(begin, end)]
        result = torch.from_numpy(outputs)
        return result[:, :1], result[:, 1:]

    @property
    def store(self) -> np.ndarray:
        """What the slots of the first KV cache group hold."""
        return self.stores[0]

    def _read(self, gid: int, table: torch.Tensor, seq_len: int) -> np.ndarray:
        positions = np.arange(seq_len)
        size = self.world.kernel_sizes[gid]
        slots = table.numpy()[positions // size] * size + positions % size
        read: np.ndarray = self.stores[gid][slots]
        return read


class ToyDraft(ToyForward, PagedDraftModel):
    """A toy draft model: its KV holds its own tokens."""

    @property
    def _map(self) -> VocabularyMap:
        """Its vocabulary as the target's; by default they are the same."""
        same = np.arange(VOCAB)
        found: VocabularyMap = self.world.vocabularies.get(
            self._loaded.prefix.removeprefix("draft:"), VocabularyMap(same, same, VOCAB, VOCAB)
        )
        return found

    def continuation(self, tokens: Sequence[int], k: int) -> list[int]:
        row = self._map.inputs[np.array(tokens)].tolist()
        drafts: list[int] = []
        for _ in range(k):
            predicted = predictions(row, self.seed)[-1]
            # Where the model's token does not map, the others are equally likely.
            possible = np.flatnonzero(self._map.outputs == predicted)
            if not len(possible):
                possible = np.flatnonzero(self._map.outputs != NO_TOKEN)
            drafts.append(int(possible[0]))
            row.append(int(self._map.inputs[drafts[-1]]))
        return drafts

    def _read_in(self, inputs: ForwardInputs, recurrent: torch.Tensor | None) -> np.ndarray:
        return np.zeros(len(inputs.position))

    def _committed(self, tokens: Sequence[int]) -> np.ndarray:
        return np.stack([self._map.inputs[np.array(tokens)], np.zeros(len(tokens))], axis=1)

    def _outputs(self, known: np.ndarray) -> list[tuple[int, float]]:
        return [(token, 0.0) for token in predictions(known[:, 0].tolist(), self.seed)]


class ToyHead(ToyForward, PagedHead):
    """A toy head: its KV holds each position's next token and the target's state."""

    def continuation(self, tokens: Sequence[int], k: int) -> list[int]:
        pairs = [tuple(pair) for pair in self._committed(tokens).tolist()]
        drafts: list[int] = []
        for _ in range(k):
            token, own = head_outputs(pairs, self.seed, self.layers)[-1]
            drafts.append(token)
            pairs.append((token, own))
        return drafts

    def _read_in(self, inputs: ForwardInputs, recurrent: torch.Tensor | None) -> np.ndarray:
        states = self._read_states(inputs) if recurrent is None else recurrent
        read: np.ndarray = states[:, 0].numpy()
        return read

    def _committed(self, tokens: Sequence[int]) -> np.ndarray:
        of_layers = [target_states(tokens[:-1], layer) for layer in self.layers or (0,)]
        return np.stack([np.array(tokens[1:]), np.sum(of_layers, axis=0)], axis=1)

    def _outputs(self, known: np.ndarray) -> list[tuple[int, float]]:
        return head_outputs([tuple(pair) for pair in known.tolist()], self.seed, self.layers)


class ToyLoaded:
    """Replaces `LoadedDraft`, `LoadedHead` and `LoadedBlockHead`."""

    hidden_size = 1
    dtype = torch.float64
    mask_token = MASK_TOKEN
    needs_whole_blocks = False
    selector: Any = None
    refiner = None

    def __init__(self, world: Any, spec: Any, vllm_config: Any, device: Any) -> None:
        self.max_num_tokens = world.budget
        self.max_model_len = world.max_model_len  # the target's, as vLLM's drafter has it
        self.weights_bytes = 0
        self.prefix = f"draft:{spec.name}"
        self._vocabulary = vllm_config.model_config.get_vocab_size()
        self.has_markov_head = spec.method == "dspark"
        self.first_draft = 0 if self.has_markov_head else 1
        layers = (spec.model or "").split("/")[2:3]
        self.reads_aux_layers = bool(layers)
        self.draft_model_config = SimpleNamespace(
            max_model_len=world.draft_contexts.get(spec.name, world.max_model_len),
            hf_config=SimpleNamespace(
                eagle_aux_hidden_state_layer_ids=[
                    int(n) for part in layers for n in part.split(",")
                ]
            ),
        )
        self.model = self
        self.kv_cache_gids = range(len(world.block_sizes))
        self.draft_attn_groups = tuple(
            SimpleNamespace(
                kv_cache_group_id=gid,
                layer_names=[f"{self.prefix}.{gid}"],
                kv_cache_spec=SimpleNamespace(page_size_bytes=0),
            )
            for gid in self.kv_cache_gids
        )
        self.layer_names = {name for group in self.draft_attn_groups for name in group.layer_names}
        self.layers_with_kv = self.layer_names

    def load_model(self, target: Any) -> None:
        """There are no weights."""

    def context_slots(self, slots: Any) -> list[torch.Tensor]:
        """It has one layer in each group."""
        return [slots[gid] for gid in self.kv_cache_gids]

    def add_markov_bias(self, logits: torch.Tensor, _: Any, tokens: torch.Tensor) -> None:
        """Adds enough for the token of `after`; nothing where there is none."""
        following = torch.nn.functional.one_hot((7 * tokens.long() + 2) % VOCAB, self._vocabulary)
        logits += following * torch.where(tokens % 3 == 0, 100.0, 0.0)[:, None]

    def tp_scope(self) -> AbstractContextManager[None]:
        """There is one rank."""
        return nullcontext()

    def initialize_attn_backend(self, kv_cache_config: Any, sizes: Any) -> None:
        """There is no backend."""

    def combine_hidden_states(self, joined: torch.Tensor) -> torch.Tensor:
        """The sum over the layers."""
        return joined.sum(dim=-1, keepdim=True)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """One token's; flat if the model is unsure. The padding must not be chosen."""
        tokens = hidden[:, 0].long()
        logits = torch.nn.functional.one_hot(tokens, PADDED_VOCAB).float()
        logits *= torch.where(tokens % UNSURE > 0, 50.0, 1.0)[:, None]
        logits[:, VOCAB:] = 5.0
        return logits

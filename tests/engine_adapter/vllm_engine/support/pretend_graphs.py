"""Pretend CUDA graphs on the CPU: operators are recorded once and run again on the same tensors.

As on a GPU, a replay reads and writes the tensors of the capture, not those that the caller
passes. An input that is not in a buffer which keeps its address is therefore not seen. All graphs
share one pool of memory: what a model's graphs wrote is valid until another model's run, or another
size's. It is overwritten with NaN then.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CAPTURE, REPLAY = "capture", "replay"


@dataclass(frozen=True)
class GraphEvent:
    """A forward pass that captured graphs, or replayed them.

    Attributes:
        kind: `CAPTURE` or `REPLAY`.
        phase: what vLLM was doing.
        model: `target`, or the prefix of a draft's layers.
        mode: vLLM's name: `PIECEWISE` or `FULL`.
        num_tokens: of the graph, with padding.
    """

    kind: str
    phase: str
    model: str
    mode: str
    num_tokens: int


class GraphLog:
    """What happened, and what is happening.

    Attributes:
        events: one for each forward pass with graphs, in order.
        phase: what vLLM is doing.
        model: whose forward pass is running.
        whole: tokens of the graph of a whole step that is captured.
        attention: the metadata and the KV slots of the target's newest step, by layer.
        recording: the graph that is captured.
    """

    def __init__(self) -> None:
        self.events: list[GraphEvent] = []
        self.phase = "start"
        self.model = "target"
        self.whole = 0
        self.attention: tuple[Any, Any] = {}, {}
        self.recording: _Recording | None = None
        self._pass: Any = None
        self._alive: list[torch.Tensor] = []

    def note(self, kind: str, context: Any) -> None:
        """Notes a graph of a forward pass; `context` is vLLM's of that pass."""
        if context is self._pass:
            return
        self._pass = context
        mode, tokens = context.cudagraph_runtime_mode.name, context.batch_descriptor.num_tokens
        self.events.append(GraphEvent(kind, self.phase, self.model, mode, tokens))

    def enter(self, outputs: list[torch.Tensor]) -> None:
        """Overwrites what another pass's graphs wrote, unless these are the same pass's."""
        if outputs is self._alive:
            return
        for tensor in self._alive:
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        self._alive = outputs


LOG = GraphLog()
"""Of this process."""


class PretendGraph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self._operators: list[_Operator] = []
        self._outputs: list[torch.Tensor] = []

    def record(self, context: Any) -> "_Recording":
        """A scope whose operators it records.

        `context` is vLLM's of the forward pass of which it is a piece, `None` if it has all of it.
        """
        if context is not None:
            # All graphs of one forward pass share what they wrote.
            self._outputs = context.__dict__.setdefault("pretend_outputs", [])
            LOG.note(CAPTURE, context)
        else:
            LOG.events.append(GraphEvent(CAPTURE, LOG.phase, LOG.model, "FULL", LOG.whole))
        LOG.enter(self._outputs)
        return _Recording(self._operators, self._outputs)

    def replay(self) -> None:
        """Runs the recorded operators again, on the tensors of the capture.

        In a forward pass of vLLM's they read its context. Otherwise each reads that of the capture.
        """
        if is_in_pass := _is_in_forward_pass():
            LOG.note(REPLAY, _forward_context())
        LOG.enter(self._outputs)
        for function, args, kwargs, made, context in self._operators:
            with nullcontext() if is_in_pass else _override_forward_context(context):
                results = _tensors(function(*args, **kwargs))
            for old, new in zip(_tensors(made), results, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


_Operator = tuple[Callable[..., Any], Any, Any, Any, Any]
"""A function, its arguments, its results, and vLLM's context of the forward pass that calls it."""


class _Recording(TorchDispatchMode):
    def __init__(self, operators: list[_Operator], outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._operators, self._outputs = operators, outputs

    def __enter__(self) -> Any:
        LOG.recording = self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        LOG.recording = None
        super().__exit__(*error)

    def add(self, function: Callable[[], None]) -> None:
        """Records what is a kernel on a GPU and no operator here."""
        self._operators.append((function, (), {}, (), None))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        context = _forward_context() if _is_in_forward_pass() else None
        self._operators.append((func, args, kwargs, made, context))
        given = {_address(x) for x in _tensors((args, kwargs))}
        self._outputs += [x for x in _tensors(made) if _address(x) not in given]
        return made


@contextmanager
def pretend_capture(graph: PretendGraph, *_: Any, **__: Any) -> Iterator[None]:
    """In place of `torch.cuda.graph`."""
    with graph.record(_forward_context() if _is_in_forward_pass() else None):
        yield


def _is_in_forward_pass() -> bool:
    from vllm.forward_context import is_forward_context_available

    return bool(is_forward_context_available())


def _forward_context() -> Any:
    from vllm.forward_context import get_forward_context

    return get_forward_context()


def _override_forward_context(context: Any) -> Any:
    from vllm.forward_context import override_forward_context

    return override_forward_context(context)


def _tensors(value: Any) -> Sequence[torch.Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()

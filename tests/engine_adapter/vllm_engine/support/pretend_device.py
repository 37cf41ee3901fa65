"""A pretend GPU on the CPU: notes where the CPU waits for the device, and what it copies.

A tensor of the pretend device says that it is on torch's device `meta`, the only one that every
build has, and holds a tensor on the CPU, on which every operator is run. So the code under test
takes the branches that it takes off the CPU, and gets right values. Two things are as on a GPU: an
operator over tensors of both devices is an error, and so is `numpy()` of a tensor of the device.
What costs nothing here and waits there is noted with its operator and with the line of Specgate's
that called it.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("meta")
CPU = torch.device("cpu")

UPLOAD = "upload"
"""A copy to the device that does not wait: from pinned memory, `non_blocking`."""

BLOCKING_UPLOAD = "blocking upload"
"""A copy to the device that waits for all its work: from ordinary memory."""

DOWNLOAD = "download"
"""A copy from the device, which waits for all its work."""

QUEUED_DOWNLOAD = "queued download"
"""A copy from the device that does not wait: `non_blocking`, into pinned memory."""

EVENT = "event"
"""The CPU waits until the device has reached an event."""

VALUE = "value"
"""A number that Python reads from the device: `item()`, `int()`, `bool()`."""

SIZE = "size"
"""A result whose size depends on values: `nonzero`, an index that is a mask, and the like."""

WAITS = (BLOCKING_UPLOAD, DOWNLOAD, EVENT, VALUE, SIZE)
"""The kinds for which the CPU waits."""

_aten = torch.ops.aten

_SIZED_BY_VALUES = {
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_consecutive.default,
    _aten.unique_dim.default,
    _aten.bincount.default,
}
_INDEXING = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}


@dataclass(frozen=True)
class Event:
    """Something that the device is waited for, or a copy.

    Attributes:
        kind: one of the constants above.
        operator: torch's name.
        caller: the file and line of Specgate's that called it. Of vLLM's, if vLLM's runner did
            without a call of Specgate's in between.
    """

    kind: str
    operator: str
    caller: str

    @property
    def is_vllms(self) -> bool:
        """Whether vLLM's own part of the step did it."""
        return self.caller.startswith("vllm ")


@dataclass
class Log:
    """The events of a stretch of code."""

    events: list[Event] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind, without vLLM's."""
        return dict(Counter(event.kind for event in self.events if not event.is_vllms))

    @property
    def waits_of_vllm(self) -> list[Event]:
        """Where vLLM's own part of the step waits."""
        return [event for event in self.events if event.is_vllms and event.kind in WAITS]

    def table(self) -> str:
        """A line for each caller and operator, most frequent first."""
        lines = Counter((e.kind, e.operator, e.caller) for e in self.events).most_common()
        return "\n".join(f"{n:4} {kind:16} {op:32} {at}" for (kind, op, at), n in lines)


class DeviceTensor(torch.Tensor):
    """A tensor of the pretend device.

    Attributes:
        held: the tensor on the CPU.
    """

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "DeviceTensor":
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} of a pretend device that is switched off")

    def tolist(self) -> Any:
        # torch's own does not know such tensors.
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("a tensor of the device has no numpy array: copy it with .cpu() first")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held})"


class PretendDevice(TorchDispatchMode):
    """While it is on, tensors can be made on the pretend device and moved there.

    Attributes:
        recorded: how many events the device was given.
        reached: how many of them it has reached.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recorded = self.reached = 0
        self._log: Log | None = None
        self._pinned: set[int] = set()
        self._kept: list[torch.Tensor] = []

    @contextmanager
    def noting(self, log: Log) -> Iterator[None]:
        """A scope in which what happens is added to the log."""
        self._log = log
        try:
            yield
        finally:
            self._log = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (_aten.is_pinned.default, _aten._pin_memory.default):
            return self._pin(func, args[0])
        with self:  # an operator that is made of others, in inference mode
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        on_device = [x for x in given if isinstance(x, DeviceTensor)]
        target = kwargs.get("device")
        self._note(func, args, kwargs, given, on_device)
        if target is not None:
            kwargs["device"] = CPU
        pinned = kwargs.pop("pin_memory", None)
        made = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if pinned:
            self._mark_pinned(made)
        if target.type == GPU.type if target is not None else on_device:
            wrappers = {id(x.held): x for x in on_device}
            return tree_map(lambda x: _wrapped(x, wrappers), made)
        return made

    def _pin(self, func: Any, tensor: torch.Tensor) -> Any:
        if func is _aten.is_pinned.default:
            return self._is_pinned(tensor)
        copied = tensor.clone()
        self._mark_pinned(copied)
        return copied

    def _mark_pinned(self, tensor: torch.Tensor) -> None:
        self._kept.append(tensor)  # no other tensor gets its address
        self._pinned.add(tensor.untyped_storage().data_ptr())

    def _note(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Sequence[torch.Tensor],
        on_device: Sequence[DeviceTensor],
    ) -> None:
        kind = None
        if func is _aten._to_copy.default:
            target = kwargs.get("device") or args[0].device
            # torch pins what it makes for a copy that does not wait.
            is_queued = bool(kwargs.get("non_blocking"))
            kind = self._copy_kind(args[0], target, is_queued, is_queued)
        elif func is _aten.copy_.default:
            is_queued = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
            kind = self._copy_kind(args[1], args[0].device, is_queued, self._is_pinned(args[0]))
        elif not on_device:
            return
        elif func is _aten._local_scalar_dense.default or func is _aten.equal.default:
            kind = VALUE
        elif func in _SIZED_BY_VALUES or (
            func is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        ):
            kind = SIZE
        elif func in _INDEXING:
            kind = _index_kind(func, args)
        elif any(x.dim() for x in given if not isinstance(x, DeviceTensor)):
            raise RuntimeError(f"{func} got tensors of both devices")
        if kind is not None:
            self.note(kind, str(func))

    def note(self, kind: str, operator: str) -> None:
        """Notes an event of the line that is running."""
        if self._log is not None:
            self._log.events.append(Event(kind, operator, _caller()))

    def _copy_kind(
        self, source: torch.Tensor, target: torch.device, is_queued: bool, into_pinned: bool
    ) -> str | None:
        if source.device.type == target.type:
            return None
        if target.type == CPU.type:
            return QUEUED_DOWNLOAD if is_queued and into_pinned else DOWNLOAD
        return UPLOAD if self._is_pinned(source) and is_queued else BLOCKING_UPLOAD

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned


@contextmanager
def pretend_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendDevice]:
    """A scope in which the pretend device exists."""
    tensor = torch.tensor

    def made_and_moved(data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:
        made = tensor(data, **kwargs)
        return made if device is None else made.to(device)

    monkeypatch.setattr(torch, "Generator", _Generator)
    monkeypatch.setattr(torch, "tensor", made_and_moved)  # torch's drops the data for `meta`
    with torch.inference_mode(), PretendDevice() as device:
        yield device


class _Generator(torch.Generator):
    """The CPU's generator, for every device: to seed one waits for nothing on a GPU either."""

    def __new__(cls, device: Any = None) -> "_Generator":
        return super().__new__(cls)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _wrapped(value: Any, wrappers: Mapping[int, DeviceTensor]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    known = wrappers.get(id(value))  # an operator in place returns its own tensor
    return DeviceTensor(value) if known is None else known


def _index_kind(func: Any, args: Sequence[Any]) -> str | None:
    index = [x for x in args[1] if x is not None]
    is_mask = any(x.dtype in (torch.bool, torch.uint8) for x in index)
    # torch fills through a mask, without counting it, if there is one value for all.
    if is_mask and not (func is not _aten.index.Tensor and args[2].numel() == 1):
        return SIZE
    return BLOCKING_UPLOAD if any(not isinstance(x, DeviceTensor) for x in index) else None


def _caller() -> str:
    """The innermost line of Specgate's, above `staging`; of vLLM's if its runner is nearer."""
    frame, vllm = sys._getframe(1), "unknown"
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        parts = path.parts
        if "engine_adapter" in parts and "tests" not in parts and path.name != "staging.py":
            return f"{'/'.join(path.parts[-2:])}:{frame.f_lineno}"
        if "vllm" in parts:
            vllm = vllm if vllm != "unknown" else f"vllm {path.name}:{frame.f_lineno}"
            if path.name == "model_runner.py":
                break
        frame = frame.f_back  # type: ignore[assignment]
    return vllm

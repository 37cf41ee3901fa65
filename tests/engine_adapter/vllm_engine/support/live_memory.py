"""How many bytes the tensors hold that a stretch of code makes."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """While it is on, counts the bytes of new tensors until they are gone.

    Attributes:
        peak: the most bytes at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, int] = {}
        self._now = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(made):
            if storage._cdata not in given:
                self._count(storage)
        return made

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._live:
            return
        size = self._live[key] = storage.nbytes()
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self._now -= self._live.pop(key)


def _storages(value: Any) -> list[Any]:
    return [x.untyped_storage() for x in tree_leaves(value) if isinstance(x, torch.Tensor)]

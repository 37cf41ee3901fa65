"""A checkpoint of heads: its configuration and tensors, checked before a weight is read.

A folder or a hub id with a `config.json` and weights: safetensors or PyTorch's own format, in one
file or in shards with an index. Names and shapes come from the files' headers.
"""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Where weights are looked for; the first file that is there holds them all."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what would be right.

    Attributes:
        field: the proposer's field at fault.
    """

    def __init__(self, message: str, field: str = "model") -> None:
        super().__init__(message)
        self.field = field


class _Missing(CheckpointError):
    """A file that is not there."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a tensor is, and its shape."""

    path: Path
    shape: Shape


class Checkpoint:
    """A checkpoint whose configuration has been read.

    Args:
        model: a folder, or an id on the hub; from there only what is asked for is fetched.
        weights: names of files to look for, beside `WEIGHTS`.

    Raises:
        CheckpointError: there is no such folder, or its `config.json` cannot be read.
    """

    def __init__(self, model: str, weights: Sequence[str] = ()) -> None:
        self._model = model
        self._candidates = (*weights, *WEIGHTS)
        self._config_path = _locate(model, "config.json")
        self.config: Mapping[str, Any] = _read_json(self._config_path)

    # -- configuration -------------------------------------------------------------------------

    def integer(self, *names: str, at_least: int = 1, default: int | None = None) -> int:
        """The first of the fields `names` that is set; else `default`, if there is one."""
        for name in names:
            value = self.config.get(name)
            if value is not None:
                if type(value) is not int or value < at_least:
                    raise self.wrong(name, f"must be an integer of at least {at_least}")
                return value
        if default is None:
            raise CheckpointError(f"{self._config_path}: {' or '.join(names)} is missing")
        return default

    def flag(self, name: str) -> bool:
        """A field that is true or false; false if it is not set."""
        value = self.config.get(name, False)
        if type(value) is not bool:
            raise self.wrong(name, "must be true or false")
        return value

    def require_architecture(self, name: str, model_type: str) -> None:
        """Raises `CheckpointError` unless `architectures`, or else `model_type`, is this one."""
        architectures = self.config.get("architectures")
        if architectures and name not in architectures:
            raise self.wrong("architectures", f"must be [{name!r}]")
        if not architectures and self.config.get("model_type") != model_type:
            raise self.wrong("model_type", f"must be {model_type!r}")

    def agree(self, name: str, value: int, whose: str) -> None:
        """Raises `CheckpointError` if the field `name` is set to something other than `value`."""
        if self.integer(name, default=value) != value:
            raise self.wrong(name, f"must be {value}, which is {whose}")

    def wrong(self, name: str, what: str) -> CheckpointError:
        """The error that says what the field `name` must be."""
        found = self.config.get(name)
        return CheckpointError(f"{self._config_path}: {name} {what}; it is {found!r}")

    def limit(self, k: int, most: int, what: str) -> None:
        """Raises `CheckpointError` if k is above `most`, which is `what` of the checkpoint."""
        if k > most:
            raise CheckpointError(
                f"{self._config_path.parent}: num_speculative_tokens must be at most {most}, "
                f"{what}; it is {k}",
                "num_speculative_tokens",
            )

    # -- tensors -------------------------------------------------------------------------------

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Every tensor's name and shape. Raises `CheckpointError` if a file cannot be read."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def path_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._entries[name].path

    def check_tensors(self, needed: Mapping[str, Shape], known: Iterable[str] = ()) -> None:
        """Raises `CheckpointError` unless the tensors are those in `needed`.

        Args:
            needed: name -> shape.
            known: names that may be there as well and are not used.
        """
        for name, shape in needed.items():
            if name not in self.shapes:
                raise CheckpointError(
                    f"{self._weights}: tensor {name} of shape {list(shape)} is missing"
                )
            if self.shapes[name] != shape:
                raise CheckpointError(
                    f"{self.path_of(name)}: tensor {name} must have shape {list(shape)}; "
                    f"it has {list(self.shapes[name])}"
                )
        for name in sorted(self.shapes.keys() - needed.keys() - set(known)):
            raise CheckpointError(f"{self.path_of(name)}: tensor {name} is not expected")

    def read(self, names: Iterable[str]) -> "dict[str, torch.Tensor]":
        """Reads tensors, on the CPU and in their own dtype; they may be views of the file."""
        by_path: dict[Path, list[str]] = {}
        for name in names:
            by_path.setdefault(self._entries[name].path, []).append(name)
        tensors: dict[str, torch.Tensor] = {}
        for path, held in by_path.items():
            with _reading(path):
                tensors |= _tensors(path, held)
        return tensors

    @cached_property
    def _weights(self) -> Path:
        for name in self._candidates:
            try:
                return _locate(self._model, name)
            except _Missing:
                continue
        raise CheckpointError(f"{self._model}: there is none of {', '.join(self._candidates)}")

    @cached_property
    def _entries(self) -> Mapping[str, _Entry]:
        entries: dict[str, _Entry] = {}
        for path in self._files():
            with _reading(path):
                entries |= _header(path)
        return entries

    def _files(self) -> list[Path]:
        if self._weights.suffix != ".json":
            return [self._weights]
        shard_of = _read_json(self._weights).get("weight_map")
        if not isinstance(shard_of, dict) or not all(isinstance(v, str) for v in shard_of.values()):
            raise CheckpointError(f"{self._weights}: weight_map must name the file of each tensor")
        return [_locate(self._model, shard) for shard in sorted(set(shard_of.values()))]


def _locate(model: str, name: str) -> Path:
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / name).is_file():
            raise _Missing(f"{folder / name} is missing")
        return folder / name
    if model.startswith(("/", ".", "~")):
        raise CheckpointError(f"there is no folder {model}")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(model, name))
    except EntryNotFoundError as error:
        raise _Missing(f"{model}: {name}: {error}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{model}: {name}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return value


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns what the libraries raise for a damaged file into a `CheckpointError`."""
    try:
        yield
    except (OSError, RuntimeError, EOFError, UnpicklingError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _header(path: Path) -> dict[str, _Entry]:
    """The tensors of a file. A PyTorch file is mapped into memory; only its pickle is read."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="numpy") as file:
            names = file.offset_keys()
            return {name: _Entry(path, tuple(file.get_slice(name).get_shape())) for name in names}
    return {name: _Entry(path, tuple(t.shape)) for name, t in _unpickled(path).items()}


def _tensors(path: Path, names: Sequence[str]) -> "dict[str, torch.Tensor]":
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in names}
    tensors = _unpickled(path)
    return {name: tensors[name] for name in names}


def _unpickled(path: Path) -> "dict[str, torch.Tensor]":
    import torch

    mapped = zipfile.is_zipfile(path)
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise CheckpointError(f"{path}: must hold tensors by name")
    return tensors

"""A checkpoint of a draft head: configuration and tensor shapes, checked before weights are read.

A checkpoint is a folder or a hub id with a `config.json` and weights, as safetensors or in
PyTorch's format, in one file or in shards with an index. Names and shapes come from the files'
headers.
"""

import copy
import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from safetensors import safe_open

from engine_adapter.seam.text import short_repr, truncate

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""File names of weights. The first file that exists has them all, or is the index of the shards."""

MAX_JSON_BYTES = 64 * 2**20
"""The largest configuration or index that is read."""

MAX_SIZE = 2**31 - 1
"""The largest size that a configuration can state."""

MAX_PARTS = 1024
"""The most heads, layers or steps that a configuration can state."""

_FORMATS = (".safetensors", ".bin", ".pt")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The message has the file and the expected value.

    Attributes:
        field: the field of the proposer's configuration at fault.
    """

    def __init__(self, message: str, field: str = "model") -> None:
        super().__init__(message)
        self.field = field


class _MissingFile(CheckpointError):
    """A file that does not exist."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """The file and the shape of a tensor."""

    path: Path
    shape: Shape


class Checkpoint:
    """A checkpoint whose configuration has been read.

    Args:
        model: a folder, or a hub id, of which only the files in use are downloaded.
        weights: file names of weights that are tried before `WEIGHTS`.
        revision: the revision of a hub id; `None` for the default one.

    Attributes:
        config: the fields of `config.json`.

    Raises:
        CheckpointError: the folder does not exist, or its `config.json` cannot be read.
    """

    def __init__(
        self, model: str, weights: Sequence[str] = (), revision: str | None = None
    ) -> None:
        self._model, self._revision = model, revision
        self._candidates = (*weights, *WEIGHTS)
        self._within = ""  # the object whose fields `config` has, as a prefix of their names
        self._config_path = _locate(model, "config.json", revision)
        self.config: Mapping[str, Any] = _read_json(self._config_path)

    # -- configuration -------------------------------------------------------------------------

    def part(self, name: str) -> Self:
        """The same checkpoint with the fields of the object `name`; errors have `name.field`.

        Raises `CheckpointError` if it is not an object.
        """
        fields = self.config.get(name)
        if not isinstance(fields, dict):
            raise self.field_error(name, "must be an object")
        part = copy.copy(self)
        part.config, part._within = fields, f"{self._within}{name}."
        return part

    def text_part(self) -> Self:
        """The same checkpoint with the fields of its text model; a multimodal one nests them."""
        text_config = self.config.get("text_config")
        if not isinstance(text_config, dict):
            return self
        part = copy.copy(self)
        part.config = text_config
        return part

    def integer(
        self, *names: str, at_least: int = 1, at_most: int = MAX_SIZE, default: int | None = None
    ) -> int:
        """The first of the fields `names` that is set, or else `default`.

        Raises `CheckpointError` if it is not an integer from `at_least` to `at_most`, or if none is
        set and there is no default.
        """
        for name in names:
            value = self.config.get(name)
            if value is not None:
                if type(value) is not int or value < at_least:
                    raise self.field_error(name, f"must be an integer of at least {at_least}")
                if value > at_most:
                    raise self.field_error(name, f"must be at most {at_most}")
                return value
        if default is None:
            missing = " or ".join(f"{self._within}{name}" for name in names)
            raise CheckpointError(f"{self._config_path}: {missing} is missing")
        return default

    def number(self, name: str, *, positive: bool = True) -> float | None:
        """A field that is a finite number, above 0 if `positive`; `None` if it is missing.

        Raises `CheckpointError` otherwise.
        """
        value = self.config.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.field_error(name, "must be a number")
        if positive and value <= 0:
            raise self.field_error(name, "must be above 0")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A field that is true or false, or else `default`. Raises `CheckpointError` otherwise."""
        value = self.config.get(name, default)
        if type(value) is not bool:
            raise self.field_error(name, "must be true or false")
        return value

    def require_architecture(self, name: str, model_type: str) -> None:
        """Raises `CheckpointError` unless `architectures` (else `model_type`) is the given one."""
        architectures = self.config.get("architectures")
        if architectures and (not isinstance(architectures, list) or name not in architectures):
            raise self.field_error("architectures", f"must be [{name!r}]")
        if not architectures and self.config.get("model_type") != model_type:
            raise self.field_error("model_type", f"must be {model_type!r}")

    def require(self, name: str, value: int, whose: str) -> None:
        """Raises `CheckpointError` if the field `name` is set and not `value`, which is `whose`."""
        if self.integer(name, default=value) != value:
            raise self.field_error(name, f"must be {value}, which is {whose}")

    def field_error(self, name: str, message: str) -> CheckpointError:
        """The error for an invalid field `name`; `message` says what it must be."""
        value = self.config.get(name)
        return CheckpointError(
            f"{self._config_path}: {self._within}{name} {message}; it is {short_repr(value)}"
        )

    def check_k(self, k: int, limit: int, meaning: str) -> None:
        """Raises `CheckpointError` if k is above `limit`. The message has its `meaning`."""
        if k > limit:
            raise CheckpointError(
                f"{self._config_path.parent}: num_speculative_tokens must be at most {limit}, "
                f"{meaning}; it is {k}",
                "num_speculative_tokens",
            )

    # -- tensors -------------------------------------------------------------------------------

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Tensor name -> shape. Raises `CheckpointError` if a file cannot be read."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def path_of(self, name: str) -> Path:
        """The file of a tensor."""
        return self._entries[name].path

    def check_tensors(self, needed: Mapping[str, Shape], optional: Iterable[str] = ()) -> None:
        """Raises `CheckpointError` for a missing tensor, a wrong shape, or an unexpected tensor.

        Args:
            needed: name -> shape of the tensors that must exist.
            optional: names of tensors that may exist too and are not used.
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
        for name in sorted(self.shapes.keys() - needed.keys() - set(optional)):
            raise CheckpointError(f"{self.path_of(name)}: tensor {name} is not expected")

    def read(self, names: Iterable[str]) -> "dict[str, torch.Tensor]":
        """Reads tensors to the CPU in their stored dtype. They may be views of the mapped file."""
        by_path: dict[Path, list[str]] = {}
        for name in names:
            by_path.setdefault(self._entries[name].path, []).append(name)
        tensors: dict[str, torch.Tensor] = {}
        for path, in_file in by_path.items():
            with _reading(path):
                tensors |= _tensors(path, in_file)
        return tensors

    @cached_property
    def _weights(self) -> Path:
        for name in self._candidates:
            try:
                return _locate(self._model, name, self._revision)
            except _MissingFile:
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
        for shard in shard_of.values():
            # A path would lead out of the checkpoint's folder, to any file of this machine.
            if shard != Path(shard).name or not shard.endswith(_FORMATS):
                raise CheckpointError(
                    f"{self._weights}: weight_map must name files beside it that end in "
                    f"{' or '.join(_FORMATS)}; it has {short_repr(shard)}"
                )
        shards = sorted(set(shard_of.values()))
        return [_locate(self._model, shard, self._revision) for shard in shards]


def _locate(model: str, name: str, revision: str | None) -> Path:
    try:
        folder = Path(model).expanduser()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # too long a name; "~" before a name that no user has
        raise CheckpointError(f"{truncate(model)}: {truncate(str(error))}") from error
    if is_folder:
        if not (folder / name).is_file():
            raise _MissingFile(f"{folder / name} is missing")
        return folder / name
    if model.startswith(("/", ".", "~")):
        raise CheckpointError(f"the folder {model} does not exist")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(model, name, revision=revision))
    except EntryNotFoundError as error:
        raise _MissingFile(f"{model}: {name}: {error}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{model}: {name}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"is larger than {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return value


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises `CheckpointError` instead of the libraries' exceptions for a damaged file."""
    try:
        yield
    except CheckpointError:
        raise
    # A damaged pickle can raise nearly everything.
    except Exception as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _header(path: Path) -> dict[str, _Entry]:
    """The entries of a file. A PyTorch file is mapped into memory; only its pickle is read."""
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

    can_map = zipfile.is_zipfile(path)
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=can_map)
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and torch.is_tensor(tensor) for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path}: must hold tensors by name")
    return tensors

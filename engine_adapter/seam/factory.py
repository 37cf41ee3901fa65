"""Creates an engine by name. Only then are the engine's modules imported."""

from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Protocol

from prometheus_client import CollectorRegistry

from engine_adapter.data_parallel.engine import DataParallelEngine
from engine_adapter.proposers.methods import with_prediction
from engine_adapter.seam.config import EngineConfig, draft_capacity
from engine_adapter.seam.interface import Engine, EngineObserver

ENGINES = ("vllm", "fake")
"""The engines that `create_engine` knows."""


class EngineFlags(Protocol):
    """The flags of an engine's own arguments."""

    def argument_names(self) -> frozenset[str]:
        """The names of all its arguments."""

    def add_engine_flags(self, parser: ArgumentParser, settings: Collection[str]) -> None:
        """Adds a flag for each argument that is not among the settings of the server."""

    def spelled_out(self, words: Sequence[str]) -> list[str]:
        """The words of a command line with one spelling for each flag. Raises `ValueError`."""


def engine_flags(name: str) -> EngineFlags | None:
    """The flags of an engine; `None` if it has none, or is not installed. Imports it: seconds."""
    if name != "vllm" or find_spec("vllm") is None:
        return None
    from engine_adapter.vllm_engine.gateway import flags

    return flags


def create_engine(
    name: str, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
) -> Engine:
    """Builds an engine without starting it.

    Args:
        name: one of `ENGINES`.
        registry: gets the engine's own metrics, the `vllm:` names.
        observer: gets the engine's reports.

    Raises:
        ValueError: `name` is not in `ENGINES`.
        EngineConfigError: a setting cannot work.
    """
    capacity = draft_capacity(config.proposers, config.max_speculative_tokens)
    config = replace(config, proposers=with_prediction(config.proposers, capacity))
    if config.data_parallel_size == 1:
        return _one_engine(name, config, registry, observer)

    def create(index: int, rank_observer: EngineObserver) -> Engine:
        return _one_engine(
            name, replace(config, data_parallel_index=index), registry, rank_observer
        )

    return DataParallelEngine(create, config.data_parallel_size, config.proposers, observer)


def _one_engine(
    name: str, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
) -> Engine:
    if name == "vllm":
        from engine_adapter.vllm_engine.gateway.engine import VllmEngine

        return VllmEngine(config, registry, observer)
    if name == "fake":
        from engine_adapter.fake.replay import create_fake_engine

        return create_fake_engine(config, registry, observer)
    raise ValueError(f"unknown engine {name!r}; the engines are {', '.join(ENGINES)}")

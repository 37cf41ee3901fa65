"""The seam between the gateway and an engine: the protocols that an engine implements and calls.

`engine_adapter.types` has the plain types that cross the seam, `engine_adapter.counts` the
statistics. Nothing here imports torch, vLLM, FastAPI or pydantic. `vllm_engine` and `fake`
implement `Engine`; the gateway knows no other part of them.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol

from engine_adapter.counts import StepReport
from engine_adapter.errors import EngineDead
from engine_adapter.types import (
    Delta,
    EngineInfo,
    GenerationRequest,
    LoraAdapter,
    ProposerInfo,
    Switch,
)


class EngineObserver(Protocol):
    """Takes an engine's reports, in order, on the event loop's thread. Must not block."""

    def on_step(self, report: StepReport) -> None:
        """Counts one engine step."""

    def on_restart(self, succeeded: bool) -> None:
        """Counts an attempt to replace a dead engine process."""


class Engine(Protocol):
    """A target model and its proposers.

    `start` comes first and once; then everything else, concurrently, on one event loop; then
    `stop`, which ends what still runs.
    """

    @property
    def info(self) -> EngineInfo:
        """What was started. Raises `EngineNotReady` before `start` has returned."""
        ...

    @property
    def failure(self) -> EngineDead | None:
        """Why the engine is dead and when it should serve again; `None` while it can serve."""
        ...

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """Loads the models. `on_progress` gets a line for each stage.

        Raises:
            EngineConfigError: a setting cannot work; the message names it.
            EngineStartError: loading failed for another reason.
        """
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Generates one sequence. Closing the generator is the one way to abort it.

        Raises:
            InvalidRequest: the engine cannot honour a field; nothing was started.
            EngineDead: the engine is dead, or died before the sequence was whole.
        """
        ...

    async def switch(self, switch: Switch, *, running: bool) -> None:
        """Makes the switch's method the default from the next step on.

        With `running`, every live request that is not pinned takes it too; without, live
        requests keep theirs.

        Raises:
            EngineDead: the engine is gone.
        """
        ...

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """The loaded proposers with their present figures, and one that is being loaded."""
        ...

    async def load_proposer(self, fields: Mapping[str, Any]) -> ProposerInfo:
        """Loads a proposer while requests are served; no stream waits for its weights.

        Args:
            fields: its JSON object, as `--proposer` takes it.

        Raises:
            EngineConfigError: a field, or a file of its weights, cannot work.
            ProposerRefused: not as things are; nothing changed.
            EngineDead: the engine is gone, or died meanwhile; nothing changed.
        """
        ...

    async def unload_proposer(self, name: str) -> None:
        """Unloads a proposer and frees its memory. The caller sees to it that nobody uses it.

        Raises:
            ProposerRefused: there is no such proposer, or another one needs it.
            EngineDead: the engine is gone; the next process does not load it.
        """
        ...

    @property
    def lora_adapters(self) -> tuple[LoraAdapter, ...]:
        """The LoRA adapters that requests may ask for."""
        ...

    async def load_lora_adapter(self, name: str, path: str) -> LoraAdapter:
        """Loads a LoRA adapter while requests are served.

        Raises:
            EngineConfigError: what stands at `path` cannot be used.
            LoraRefused: not as things are; nothing changed.
            EngineDead: the engine is gone, or died meanwhile.
        """
        ...

    async def unload_lora_adapter(self, name: str) -> None:
        """Unloads a LoRA adapter that no request uses.

        Raises:
            LoraRefused: there is none, or it is in use; nothing changed.
            EngineDead: the engine is gone, and the adapter with it.
        """
        ...

    async def stop(self) -> None:
        """Ends every sequence and frees the models. Safe to call twice."""
        ...

"""The seam between the gateway and an engine.

The gateway calls an `Engine` and implements the `EngineObserver` that the engine calls. What
crosses the seam is beside this module: the types in `types`, the statistics in `counts`, the
exceptions in `errors`. `vllm_engine` and `fake` implement `Engine`; the gateway uses nothing else
of them. Nothing here imports torch, vLLM, FastAPI or pydantic.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol

from engine_adapter.seam.counts import StepReport
from engine_adapter.seam.errors import EngineDead
from engine_adapter.seam.media import MediaItem, MediaPrompt
from engine_adapter.seam.parsing import Parsing, ParsingRequest
from engine_adapter.seam.types import (
    Delta,
    EngineInfo,
    GenerationRequest,
    LoraAdapter,
    PolicyInfo,
    ProposerInfo,
    StructuredOutput,
    Switch,
)


class EngineObserver(Protocol):
    """Gets an engine's reports, in order, on the event loop's thread. Must not block."""

    def on_step(self, report: StepReport) -> None:
        """Called after each engine step."""

    def on_restart(self, succeeded: bool) -> None:
        """Called after each attempt to replace a dead engine process."""


class Engine(Protocol):
    """A target model with its proposers and LoRA adapters.

    `start` is called once and first, `stop` last. Between them all methods may be called
    concurrently, on one event loop.
    """

    @property
    def info(self) -> EngineInfo:
        """The started engine. Raises `EngineNotReady` before `start` has returned."""
        ...

    @property
    def failure(self) -> EngineDead | None:
        """Why the engine is dead, and when it should serve again; `None` while it can serve."""
        ...

    @property
    def failures(self) -> tuple[EngineDead | None, ...]:
        """`failure` of each engine that shares the requests, in order; one if there is only one."""
        ...

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """Loads the models.

        Args:
            on_progress: called with one line of text for each stage.

        Raises:
            EngineConfigError: a setting cannot work; the message names it.
            EngineStartError: the engine cannot be loaded for another reason.
        """
        ...

    async def check_constraint(self, constraint: StructuredOutput, key: str | None = None) -> None:
        """Returns if the engine can enforce a constraint. It may take seconds, and no slot.

        Args:
            key: the name of its API key. Slow ones of one key do not hold up another's.

        Raises:
            InvalidRequest: it cannot, or only with too much time or memory.
            EngineError: the constraint could not be checked.
            EngineDead: the engine is dead, or was stopped.
        """
        ...

    async def render_media(
        self,
        token_ids: Sequence[int],
        items: Sequence[MediaItem],
        param: str,
        processor_kwargs: Mapping[str, Any],
    ) -> MediaPrompt:
        """Puts media into a prompt. It takes no slot.

        Args:
            token_ids: the prompt, with a placeholder for each item.
            items: in the order of the chat; those of one modality, in that of its placeholders.
            param: the field of the request that errors name.
            processor_kwargs: the request's own arguments of the target's processor.

        Raises:
            InvalidRequest: the target's processor refuses them.
            EngineDead: the engine is dead.
        """
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Generates one sequence. Closing the generator aborts it.

        `check_constraint` must have returned for the request's constraint.

        Raises:
            InvalidRequest: the engine cannot do what a field asks: before the first delta, but
                for a constraint that turns out to be too complex while the text is generated.
            EngineDead: the engine is dead, or died before the sequence ended.
            EngineError: the engine could not finish this sequence.
        """
        ...

    def parsing(self, request: ParsingRequest) -> Parsing | None:
        """The parsers of a request's choices; `None` if there is nothing to tell apart.

        They are those of `EngineConfig.tool_call_parser`, if the request has tools, and of
        `EngineConfig.reasoning_parser`.
        """
        ...

    async def switch(self, switch: Switch, *, running: bool) -> None:
        """Applies a switch from the next step on.

        Args:
            switch: the new default method. Requests that are admitted later carry it themselves.
            running: live requests that are not pinned change to it too; otherwise they keep
                their method.

        Raises:
            EngineDead: the engine is dead.
        """
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forgets the prefixes of prompts whose KV is kept; later requests read theirs again.

        Returns:
            `False` if a running request held a block of it, and nothing has changed.

        Raises:
            EngineDead: the engine is dead.
        """
        ...

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """The proposers with their current figures; one that is being loaded comes last."""
        ...

    async def load_proposer(self, fields: Mapping[str, Any]) -> ProposerInfo:
        """Loads a proposer while requests are served; no stream waits for its weights.

        Args:
            fields: the proposer's JSON object, as `--proposer` takes it.

        Raises:
            EngineConfigError: a field, or a file of the weights, cannot work.
            ProposerRefused: it cannot be loaded in the current state; nothing changed.
            EngineDead: the engine is dead, or died during the load; nothing changed.
        """
        ...

    async def unload_proposer(self, name: str) -> None:
        """Unloads a proposer and frees its memory. No request may be using it.

        Raises:
            ProposerRefused: it is not loaded, or cannot be unloaded in the current state.
            EngineDead: the engine is dead; its next process does not load the proposer.
        """
        ...

    @property
    def policies(self) -> tuple[PolicyInfo, ...]:
        """Every policy with its parameters, and its state some seconds ago."""
        ...

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the policies have measured, some seconds ago; see `Measurements.snapshot`."""
        ...

    async def set_policy(self, name: str, parameters: Mapping[str, Any]) -> PolicyInfo:
        """Gives a policy these parameters from the next step on; the others get their defaults.

        Args:
            name: a policy of `engine_adapter.policies.catalog`.
            parameters: as `catalog.read_policy` takes them.

        Raises:
            PolicyError: a parameter is unknown or cannot work; the old ones stay.
            EngineDead: the engine is dead; the old ones stay.
        """
        ...

    @property
    def lora_adapters(self) -> tuple[LoraAdapter, ...]:
        """The loaded LoRA adapters."""
        ...

    async def load_lora_adapter(self, name: str, path: str) -> LoraAdapter:
        """Loads a LoRA adapter while requests are served.

        Args:
            name: how requests name it.
            path: its folder, or its id on the hub.

        Raises:
            EngineConfigError: there is no usable adapter at `path`.
            LoraRefused: it cannot be loaded in the current state; nothing changed.
            EngineDead: the engine is dead, or died during the load; nothing changed.
        """
        ...

    async def unload_lora_adapter(self, name: str) -> None:
        """Unloads a LoRA adapter that no request uses.

        Raises:
            LoraRefused: it is not loaded, or requests use it; nothing changed.
            EngineDead: the engine is dead; its next process does not load the adapter.
        """
        ...

    async def stop(self) -> None:
        """Ends every sequence with `EngineDead` and frees the models. Safe to call twice."""
        ...

"""`DataParallelEngine`: several engines behind the seam of one.

vLLM's own data parallelism (`DPLBAsyncMPClient`) has one client for all engine processes, and the
death of one process ends all of them. Here each engine has a client and a supervisor of its own, so
only the dead engine's requests are lost.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import structlog

from engine_adapter.data_parallel.adapters import Adapters
from engine_adapter.data_parallel.balance import Balancer
from engine_adapter.data_parallel.changes import make
from engine_adapter.data_parallel.merging import MergedProposers, of_every_engine
from engine_adapter.data_parallel.proposer_changes import ProposerChanges
from engine_adapter.data_parallel.rank import Change, DataParallelRank, failure_of
from engine_adapter.data_parallel.switching import Switching
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.counts import NO_GRAMMARS, StepReport
from engine_adapter.seam.errors import EngineDead
from engine_adapter.seam.interface import Engine, EngineObserver
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


class _RankObserver:
    """The observer of one engine."""

    def __init__(self, engine: "DataParallelEngine", index: int) -> None:
        self._engine = engine
        self._index = index

    def on_step(self, report: StepReport) -> None:
        """See `EngineObserver`."""
        self._engine.on_member_step(self._index, report)

    def on_restart(self, succeeded: bool) -> None:
        """See `EngineObserver`."""
        self._engine.on_member_restart(self._index, succeeded)


class DataParallelEngine:
    """Several engines with the same configuration. See `engine_adapter.seam.interface.Engine`.

    Each sequence runs on one of them. A change is made at all that serve or at none; one that is
    dead gets it when it is back. The policies of each engine plan its own steps.

    Args:
        create: makes the engine of an index.
        size: how many engines.
        proposers: those at start.
        observer: gets the reports of all.
    """

    def __init__(
        self,
        create: Callable[[int, EngineObserver], Engine],
        size: int,
        proposers: Sequence[ProposerSpec],
        observer: EngineObserver,
    ) -> None:
        self._observer = observer
        self._ranks = [DataParallelRank(i, create(i, _RankObserver(self, i))) for i in range(size)]
        self._balancer = Balancer(size)
        self._merged = MergedProposers()
        self._switching = Switching()
        self._proposer_changes = ProposerChanges(proposers)
        self._adapters = Adapters()
        # Policy -> held by its guard, for each engine.
        self._suspended: list[Mapping[str, bool]] = [{} for _ in range(size)]
        self._grammars = [NO_GRAMMARS for _ in range(size)]

    # -- state -------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`. The sequences of one step are those of all engines."""
        infos = [rank.engine.info for rank in self._ranks]
        return replace(
            infos[0],
            max_model_len=min(info.max_model_len for info in infos),
            max_num_seqs=sum(info.max_num_seqs for info in infos),
            proposers=self._merged.merge(
                tuple(rank.engine.info.proposers for rank in self._serving_or_all())
            ),
        )

    @property
    def failure(self) -> EngineDead | None:
        """See `Engine.failure`: dead is the engine when none of its ranks serves."""
        return failure_of(self._ranks)

    @property
    def failures(self) -> tuple[EngineDead | None, ...]:
        """See `Engine.failures`."""
        return tuple(rank.failure for rank in self._ranks)

    @property
    def _serving(self) -> list[DataParallelRank]:
        return [rank for rank in self._ranks if rank.failure is None]

    @property
    def _first_serving(self) -> Engine:
        """Raises `EngineDead` if none serves."""
        if (failure := self.failure) is not None:
            raise failure
        return self._serving[0].engine

    def _serving_or_all(self) -> list[DataParallelRank]:
        return self._serving or self._ranks

    # -- lifetime ----------------------------------------------------------------------------

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """See `Engine.start`. The first engine shows whether the settings can work."""

        async def begin(rank: DataParallelRank) -> None:
            # The tasks that it starts inherit this, so that its lines in the log name it.
            structlog.contextvars.bind_contextvars(engine=rank.index)
            await rank.engine.start(lambda line: on_progress(f"engine {rank.index}: {line}"))

        try:
            for ranks in (self._ranks[:1], self._ranks[1:]):
                await _run_together([begin(rank) for rank in ranks])
        except BaseException:
            await self.stop()
            raise
        self._adapters.begin(self._ranks[0].engine.lora_adapters)

    async def stop(self) -> None:
        """See `Engine.stop`."""
        await asyncio.gather(*(rank.stop() for rank in self._ranks))

    # -- requests ----------------------------------------------------------------------------

    async def check_constraint(self, constraint: StructuredOutput, key: str | None = None) -> None:
        """See `Engine.check_constraint`. One engine checks all, so that it knows equal ones."""
        await self._first_serving.check_constraint(constraint, key)

    async def render_media(
        self,
        token_ids: Sequence[int],
        items: Sequence[MediaItem],
        param: str,
        processor_kwargs: Mapping[str, Any],
    ) -> MediaPrompt:
        """See `Engine.render_media`. Any engine can take what one has rendered."""
        return await self._first_serving.render_media(token_ids, items, param, processor_kwargs)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        with self._adapters.keep_loaded(request.lora_adapter):
            ranks = self._adapters.holders(request.lora_adapter, self._serving)
            if not ranks and (failure := self.failure) is not None:
                raise failure
            self._adapters.check_held(request.lora_adapter, ranks)
            self._switching.note_request(request.spec_decode)
            engines = [rank.index for rank in ranks]
            with self._balancer.assign(engines, request.prompt_token_ids) as assignment:
                rank = self._ranks[assignment.engine]
                rank_request = self._adapters.for_rank(request, rank)
                try:
                    async with aclosing(rank.engine.generate(rank_request)) as deltas:
                        async for delta in deltas:
                            self._balancer.begin(assignment)
                            yield delta
                except EngineDead as error:
                    if rank.engine.failure is None:  # it was stopped
                        raise
                    # Another engine can serve the next attempt at once.
                    retry_s = 0.0 if self.failure is None else error.retry_after_s
                    message = f"Engine {rank.index} of {len(self._ranks)}: {error}"
                    raise EngineDead(message, retry_s) from error

    def parsing(self, request: ParsingRequest) -> Parsing | None:
        """See `Engine.parsing`."""
        return self._first_serving.parsing(request)

    # -- changes -----------------------------------------------------------------------------

    async def switch(self, switch: Switch, *, running: bool) -> None:
        """See `Engine.switch`."""
        await self._switching.switch(switch, running, self._ranks)

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """See `Engine.proposers`."""
        ranks = self._serving_or_all()
        by_engine = await asyncio.gather(*(rank.engine.proposers() for rank in ranks))
        return MergedProposers().merge(tuple(by_engine))

    async def load_proposer(self, fields: Mapping[str, Any]) -> ProposerInfo:
        """See `Engine.load_proposer`."""
        return await self._proposer_changes.load(fields, self._ranks)

    async def unload_proposer(self, name: str) -> None:
        """See `Engine.unload_proposer`. An engine that is dead unloads it when it is back."""
        await self._proposer_changes.unload(name, self._ranks)

    @property
    def policies(self) -> tuple[PolicyInfo, ...]:
        """See `Engine.policies`. The state has that of each engine."""
        ranks = self._serving_or_all()
        states = {rank.index: {p.name: p.state for p in rank.engine.policies} for rank in ranks}
        return tuple(
            replace(
                info,
                state=of_every_engine(
                    {i: policy_states[info.name] for i, policy_states in states.items()}
                ),
            )
            for info in ranks[0].engine.policies
        )

    @property
    def evidence(self) -> Mapping[str, Any]:
        """See `Engine.evidence`: that of each engine."""
        return of_every_engine({rank.index: rank.engine.evidence for rank in self._ranks})

    async def set_policy(self, name: str, parameters: Mapping[str, Any]) -> PolicyInfo:
        """See `Engine.set_policy`."""
        old = {info.name: info.parameters for info in self.policies}
        change = Change(
            f"the parameters of {name}",
            lambda engine: engine.set_policy(name, parameters),
            # Only a known policy can be set, and then undone.
            lambda engine: engine.set_policy(name, old[name]),
            topic=f"policy {name}",
        )
        return (await make(change, self._ranks))[0]

    async def reset_prefix_cache(self) -> bool:
        """See `Engine.reset_prefix_cache`: of every engine that serves; true if all did."""
        if (failure := self.failure) is not None:
            raise failure
        resets = [rank.engine.reset_prefix_cache() for rank in self._serving]
        return all(await asyncio.gather(*resets))

    @property
    def lora_adapters(self) -> tuple[LoraAdapter, ...]:
        """See `Engine.lora_adapters`: those that an engine has."""
        return self._adapters.available(self._serving_or_all())

    async def load_lora_adapter(self, name: str, path: str) -> LoraAdapter:
        """See `Engine.load_lora_adapter`."""
        return await self._adapters.load(name, path, self._ranks)

    async def unload_lora_adapter(self, name: str) -> None:
        """See `Engine.unload_lora_adapter`. An engine that is dead unloads it when it is back."""
        await self._adapters.unload(name, self._ranks)

    # -- reports -----------------------------------------------------------------------------

    def on_member_step(self, index: int, report: StepReport) -> None:
        """Passes a step of one engine on, with the compiled grammars of all.

        A policy is held if its guard holds it anywhere.
        """
        if report.policy is not None:
            self._suspended[index] = report.policy.suspended
            suspended = {
                name: any(guards.get(name, False) for guards in self._suspended)
                for name in report.policy.suspended
            }
            report = replace(report, policy=replace(report.policy, suspended=suspended))
        self._grammars[index] = report.grammars
        total = sum(self._grammars, NO_GRAMMARS)
        self._observer.on_step(replace(report, grammars=total))

    def on_member_restart(self, index: int, succeeded: bool) -> None:
        """Passes the attempt to replace one engine on; one that is back gets what it missed."""
        if succeeded:
            self._suspended[index] = {}
            self._grammars[index] = NO_GRAMMARS
            self._ranks[index].catch_up()
        self._observer.on_restart(succeeded)


async def _run_together(coroutines: Sequence[Any]) -> None:
    """Runs coroutines at once. The first failure ends the others, and is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise

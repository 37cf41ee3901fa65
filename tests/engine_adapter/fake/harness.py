"""A fake engine on the demo's tokenizer, with its metrics and reports, and requests for it."""

from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from demo import model_path
from engine_adapter.fake.engine import FakeEngine
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.config import EngineConfig, HangPolicy
from engine_adapter.seam.counts import StepReport
from engine_adapter.seam.factory import create_engine
from engine_adapter.seam.types import (
    PLAIN,
    Delta,
    GenerationRequest,
    SamplingOptions,
    SpecDecodeParams,
    SpecMethod,
)

PROPOSERS = (ProposerSpec("ngram", "ngram", 3), ProposerSpec("draft", "draft_model", 4, "m"))
PROMPT = tuple(range(10, 60))


@dataclass
class Reports:
    """An observer that records every step's report and every restart."""

    steps: list[StepReport] = field(default_factory=list)
    restarts: list[bool] = field(default_factory=list)

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)

    def on_restart(self, succeeded: bool) -> None:
        self.restarts.append(succeeded)


@dataclass
class FakeHarness:
    """An engine with its registry and reports."""

    engine: FakeEngine
    registry: CollectorRegistry
    reports: Reports

    def sample(self, name: str, **labels: str) -> float:
        """The value of a metric; -1 if there is no such metric."""
        labels = {"model_name": "m", "engine": "0", **labels}
        value = self.registry.get_sample_value(f"vllm:{name}", labels)
        return -1.0 if value is None else value


def build(hang: HangPolicy = HangPolicy(), **arguments: Any) -> FakeHarness:  # noqa: B008
    """An engine, not yet started."""
    config = EngineConfig(str(model_path("target")), "m", PROPOSERS, None, arguments, hang=hang)
    registry, reports = CollectorRegistry(), Reports()
    engine = create_engine("fake", config, registry, reports)
    assert isinstance(engine, FakeEngine)
    return FakeHarness(engine, registry, reports)


def make_request(
    request_id: str = "r",
    method: SpecMethod = PLAIN,
    *,
    prompt: tuple[int, ...] = PROMPT,
    pinned: bool = False,
    epoch: int = 0,
    **sampling: Any,
) -> GenerationRequest:
    """A request. Its sampling is greedy by default."""
    options = SamplingOptions(**{"temperature": 0.0, **sampling})
    return GenerationRequest(request_id, prompt, options, SpecDecodeParams(method, pinned, epoch))


async def run(harness: FakeHarness, request: GenerationRequest) -> list[Delta]:
    """All deltas of a request."""
    return [delta async for delta in harness.engine.generate(request)]


def text(deltas: list[Delta]) -> str:
    """The text of all deltas."""
    return "".join(d.text for d in deltas)


def tokens(deltas: list[Delta]) -> list[int]:
    """The tokens of all deltas."""
    return [i for d in deltas for i in d.token_ids]

"""A request that generated, as logs and traces are told of it."""

from engine_adapter.seam.counts import ProposerCounts
from engine_adapter.seam.types import SamplingOptions
from server.telemetry.generation import Generation, Selected, Timings

GENERATION = Generation(
    id="chatcmpl-1",
    operation="chat",
    model="m",
    api_key="team-a",
    streams=True,
    num_choices=1,
    sampling=SamplingOptions(),
    timings=Timings(0.25, 1.5, 2.0, 4.0),
    selected=Selected("auto", 4, "active", None),
    prompt_tokens=100,
    cached_tokens=64,
    generated_tokens=30,
    finish_reasons=("stop",),
    drafts={"ngram": ProposerCounts(5, 20, 9), "draft": ProposerCounts(2, 8, 6)},
)

"""What a request's choices have become so far, and the figures that a response gives of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_adapter.counts import ProposerCounts, SpecStats
from engine_adapter.types import Delta, FinishReason, TokenLogprob
from server.openai.request import Job
from server.openai.statistics import speculative_decoding, total


@dataclass(slots=True)
class Tally:
    """One choice. A stream forgets its text; `keep` is for the answer in one piece."""

    keep: bool
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    tokens: int = 0
    cached_tokens: int = 0
    begun: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    spec: SpecStats = field(default_factory=SpecStats)

    def add(self, delta: Delta) -> None:
        """Counts what the engine has sent."""
        self.begun = True
        self.tokens += len(delta.token_ids)
        if delta.num_cached_tokens:
            self.cached_tokens = delta.num_cached_tokens
        if delta.spec is not None:
            self.spec = delta.spec
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason
        if self.keep:
            self.texts.append(delta.text)
            self.logprobs.extend(delta.logprobs or ())
            self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs

    @property
    def text(self) -> str:
        """The whole text, where it was kept."""
        return "".join(self.texts)


def usage(job: Job, tallies: Sequence[Tally]) -> dict[str, Any]:
    """OpenAI's `usage`. Each prompt counts once, however many choices it has.

    Of a request with a prediction it says how many of the drafted tokens were kept.
    """
    completion = sum(tally.tokens for tally in tallies)
    cached = sum(tally.cached_tokens for tally in tallies[:: job.n])
    figures: dict[str, Any] = {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": job.prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if job.predicts:
        spec = total(tally.spec for tally in tallies)
        counts = spec.by_proposer.get(job.choice.name, ProposerCounts())
        figures["completion_tokens_details"] = {
            "accepted_prediction_tokens": counts.accepted,
            "rejected_prediction_tokens": counts.drafted - counts.accepted,
        }
    return figures


def choice_statistics(job: Job, tally: Tally) -> dict[str, Any]:
    """`choices[i].speculative_decoding`."""
    k = job.choice.params.spec_method.num_speculative_tokens
    return speculative_decoding(tally.spec, job.choice.name, k)


def metrics(job: Job, tallies: Sequence[Tally]) -> dict[str, Any]:
    """The response's `metrics`: all choices together."""
    k = job.choice.params.spec_method.num_speculative_tokens
    spec = total(tally.spec for tally in tallies)
    return {"speculative_decoding": speculative_decoding(spec, job.choice.name, k)}

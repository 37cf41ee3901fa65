"""The configuration that an engine is built from, and the rules that all engines share.

This module imports no engine: the gateway's settings and the engines import it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.errors import EngineConfigError

RESERVED_ARGUMENTS = {
    "speculative_config": "the proposers come from --proposer",
    "worker_cls": "the worker is Specgate's",
    "worker_extension_cls": "the worker is Specgate's",
    "scheduler_cls": "the scheduler is Specgate's",
    "additional_config": "it carries Specgate's own configuration",
    "kv_transfer_config": "its channel carries Specgate's statistics",
    "disable_log_stats": "the metrics are made from these statistics",
    "stat_loggers": "the statistics go to Specgate's metrics",
    "enable_batch_sharded_sampling": "each rank verifies the drafts of all rows",
    "return_sampling_mask": "a row with drafts has several masks, of which vLLM returns one",
}
"""Engine arguments that users cannot set because Specgate sets them, each with the reason."""

AUTO_PARSER = "auto"
"""The parser that the engine finds from the target."""

DEFAULT_GRAMMAR_BYTES = 256 << 20
"""The default of `EngineConfig.max_compiled_grammar_bytes`."""

MIN_CAPACITY = 5
"""The least default of the draft capacity: it leaves room for proposers that are loaded later."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a dead engine process is replaced.

    Attributes:
        first_delay_s: delay before the first attempt; each further attempt doubles it.
        max_delay_s: the longest delay.
        limit: the most attempts within `window_s` seconds; 0 never replaces a process.
    """

    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    limit: int = 5
    window_s: float = 600.0


@dataclass(frozen=True, slots=True)
class HangPolicy:
    """When a live engine process that does not answer counts as dead.

    Attributes:
        idle_s: seconds without an answer from a process that uses no CPU time; 0 is never.
        busy_s: seconds without an answer, although it uses CPU time: a step may be that long;
            0 is never.
    """

    idle_s: float = 30.0
    busy_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of an engine; `server.settings` makes one.

    Attributes:
        model: the target's path or id.
        served_model_name: the `model_name` label of the `vllm:` metrics.
        proposers: in the order given; may be empty. `create_engine` adds `prediction`.
        max_speculative_tokens: the draft capacity; `None` is the largest k, at least
            `MIN_CAPACITY`.
        arguments: the engine arguments that are set, by vLLM's field names.
        log_level: of the engine process.
        restart: when a dead process is replaced; the fake engine has none.
        hang: when a live process counts as dead; the fake engine uses `idle_s`.
        lora_modules: the LoRA adapters at start, name -> path; needs `enable_lora`.
        policies: policy -> its parameters, where they are not the defaults.
        primary: the proposer that a policy's parameters may leave out, if one is configured.
        tool_call_parser: finds the calls that the target makes by itself; `None` looks for none,
            `AUTO_PARSER` lets the engine find it.
        max_constraint_s: the most CPU time that compiling a request's constraint takes, in seconds.
        max_compiled_grammar_bytes: the most bytes of all compiled grammars of an engine; one may
            take a quarter.
        reasoning_parser: tells the target's reasoning from its answer; `None` does not,
            `AUTO_PARSER` lets the engine find it.
        chat_template: the file of a chat template, if not the tokenizer's.
        data_parallel_index: which one this is of the engines that share the requests.
    """

    model: str
    served_model_name: str
    proposers: Sequence[ProposerSpec] = ()
    max_speculative_tokens: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    log_level: str = "WARNING"
    restart: RestartPolicy = RestartPolicy()
    hang: HangPolicy = HangPolicy()
    lora_modules: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    primary: str | None = None
    max_constraint_s: float = 2.0
    max_compiled_grammar_bytes: int = DEFAULT_GRAMMAR_BYTES
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: str | None = None
    data_parallel_index: int = 0

    @property
    def data_parallel_size(self) -> int:
        """How many engines share the requests."""
        return int(self.arguments.get("data_parallel_size") or 1)


def draft_capacity(proposers: Sequence[ProposerSpec], max_speculative_tokens: int | None) -> int:
    """The most draft tokens per row and step: the setting, or the largest k and `MIN_CAPACITY`.

    Raises:
        EngineConfigError: a proposer's k is above the setting.
    """
    if max_speculative_tokens is None:
        largest = max((spec.num_speculative_tokens for spec in proposers), default=0)
        return max(largest, MIN_CAPACITY)
    for spec in proposers:
        if spec.num_speculative_tokens > max_speculative_tokens:
            raise EngineConfigError(
                "proposer",
                f"{spec.name}: num_speculative_tokens is {spec.num_speculative_tokens}, more than "
                f"--max-speculative-tokens, {max_speculative_tokens}",
            )
    return max_speculative_tokens

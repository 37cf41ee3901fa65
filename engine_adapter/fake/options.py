"""The fake engine's settings, read from `EngineConfig.arguments`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from engine_adapter.seam.errors import EngineConfigError

_SETTING = "engine_args"
CALLS = ("generate", "switch", "proposers", "load", "unload", "set_policy")
"""The calls at which `fake_die_at_call` can kill the engine."""


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """How the fake engine behaves; every `fake_*` name is a key of `--engine-args`.

    Of vLLM's arguments the fake engine uses `max_model_len`, `max_num_seqs`, `max_logprobs`,
    `scheduling_policy`, `block_size` and `num_gpu_blocks_override`. It ignores the others, so that
    an unchanged configuration can be tried on it. An unknown `fake_*` name is an error.

    Attributes:
        max_model_len: context length in tokens; `None` is the model's own, or 2048.
        max_num_seqs: the most sequences that run at a time; the others wait.
        max_logprobs: the most alternatives per token.
        scheduling_policy: `priority` orders the waiting sequences by priority.
        block_size: tokens in a KV block.
        num_gpu_blocks_override: KV blocks, for `vllm:kv_cache_usage_perc` and the prefix cache.
        fake_step_ms: milliseconds of every step.
        fake_prefill_token_ms: milliseconds added for each prompt token read in the step.
        fake_draft_token_ms: milliseconds added for each drafted token of the longest draft.
        fake_verify_token_ms: milliseconds added for each draft token that the step verifies.
        fake_acceptance: probability in [0, 1] that a draft token is accepted if the tokens before
            it were: one number for all proposers, or a mapping from names; 0.7 for other names.
        fake_length: a text ends by itself after n tokens, fake_length <= n < 2 * fake_length.
        fake_answers: a part of a prompt, as whole words -> the whole text that answers prompts
            with that part.
        fake_media: the most items of each modality in a request; 0 takes text only.
        fake_replay: every request gets the same deltas, made once, as `ReplayEngine` says: a delta
            then costs the engine nothing, and the gateway alone can be measured.
        fake_start_s: seconds of the start.
        fake_fail_start: if not empty, the start fails with this message.
        fake_load_s: seconds of loading a proposer.
        fake_fail_load: if not empty, a proposer's weights are refused with this message.
        fake_slow_step_every: every step whose number it divides is slow; with 0 none is.
        fake_slow_step_ms: milliseconds added to a slow step.
        fake_die_after_steps: the engine dies after this many steps of each life; 0 is never.
        fake_die_at_call: the engine dies in each call of this name, one of `CALLS`.
        fake_hang_after_steps: the engine hangs after this many steps of each life; 0 is never. It
            dies of it after `HangPolicy.idle_s`.
        fake_restart_s: seconds after its death until the engine serves again; 0 is never.
        fake_fail_switch: if not empty, every switch fails with this message.
        fake_fail_prompt: only sequences whose prompt contains this text fail.
        fake_hang_prompt: only sequences whose prompt contains this text stop emitting.
        fake_trouble_after_tokens: tokens that such a sequence emits before its fault.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_logprobs: int = 20
    scheduling_policy: str = "fcfs"
    block_size: int = 16
    num_gpu_blocks_override: int = 4096
    fake_step_ms: float = 1.0
    fake_prefill_token_ms: float = 0.0
    fake_draft_token_ms: float = 0.0
    fake_verify_token_ms: float = 0.0
    fake_acceptance: float | Mapping[str, float] = field(default_factory=dict)
    fake_length: int = 128
    fake_answers: Mapping[str, str] = field(default_factory=dict)
    fake_media: int = 0
    fake_replay: bool = False
    fake_start_s: float = 0.0
    fake_fail_start: str = ""
    fake_load_s: float = 0.0
    fake_fail_load: str = ""
    fake_slow_step_every: int = 0
    fake_slow_step_ms: float = 0.0
    fake_die_after_steps: int = 0
    fake_die_at_call: str = ""
    fake_hang_after_steps: int = 0
    fake_restart_s: float = 0.0
    fake_fail_switch: str = ""
    fake_fail_prompt: str = ""
    fake_hang_prompt: str = ""
    fake_trouble_after_tokens: int = 1

    def acceptance(self, proposer: str) -> float:
        """The probability that the proposer's next draft token is accepted."""
        if isinstance(self.fake_acceptance, Mapping):
            return self.fake_acceptance.get(proposer, 0.7)
        return self.fake_acceptance


def read_options(arguments: Mapping[str, Any]) -> FakeOptions:
    """Reads the fake engine's options from the arguments. Raises `EngineConfigError`."""
    option_names = {f.name for f in fields(FakeOptions)}
    for name in arguments:
        if name.startswith("fake_") and name not in option_names:
            names = ", ".join(sorted(n for n in option_names if n.startswith("fake_")))
            raise EngineConfigError(_SETTING, f"{name} is unknown; the options are {names}")
    values = {k: v for k, v in arguments.items() if k in option_names and v is not None}
    options = FakeOptions(**values)
    for name, value in values.items():
        _check_type(name, value)
    _check_ranges(options)
    return options


def _check_type(name: str, value: Any) -> None:
    if name == "fake_acceptance":
        rates = list(value.values()) if isinstance(value, Mapping) else [value]
        if not all(_is_number(rate) and 0 <= rate <= 1 for rate in rates):
            raise EngineConfigError(_SETTING, f"{name}: rates must be in [0, 1], got {value!r}")
    elif name == "fake_answers":
        if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
            raise EngineConfigError(_SETTING, f"{name}: must map texts to texts, got {value!r}")
    elif name == "fake_replay":
        if not isinstance(value, bool):
            raise EngineConfigError(_SETTING, f"{name}: must be true or false, got {value!r}")
    elif name in (
        "fake_fail_start",
        "fake_fail_load",
        "fake_die_at_call",
        "fake_fail_switch",
        "fake_fail_prompt",
        "fake_hang_prompt",
        "scheduling_policy",
    ):
        if not isinstance(value, str):
            raise EngineConfigError(_SETTING, f"{name}: must be a string, got {value!r}")
    elif name.endswith(("_ms", "_s")):
        if not _is_number(value) or value < 0:
            raise EngineConfigError(_SETTING, f"{name}: must be at least 0, got {value!r}")
    elif type(value) is not int or value < 0:
        raise EngineConfigError(_SETTING, f"{name}: must be an integer, at least 0: {value!r}")


def _check_ranges(options: FakeOptions) -> None:
    for name in ("max_num_seqs", "block_size", "num_gpu_blocks_override", "fake_length"):
        if getattr(options, name) < 1:
            raise EngineConfigError(_SETTING, f"{name}: must be at least 1")
    if options.max_model_len is not None and options.max_model_len < 2:
        raise EngineConfigError("max_model_len", "must be at least 2")
    if options.fake_die_at_call and options.fake_die_at_call not in CALLS:
        raise EngineConfigError(_SETTING, f"fake_die_at_call: must be one of {', '.join(CALLS)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

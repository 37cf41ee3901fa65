"""The frozen settings: one class, filled from flags, `SPECGATE_*` variables and YAML.

`server.settings.sources` reads these three sources; nothing else reads the environment. A
setting's description gives its unit and becomes its help text.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ByteSize, Field, PrivateAttr, model_validator

from engine_adapter.policies.names import AUTO
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.seam.config import AUTO_PARSER, RESERVED_ARGUMENTS, EngineConfig, draft_capacity
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.types import NONE, ProposerInfo, SpecMethod
from server.control.admin.policy_reader import read_policies
from server.control.method_names import LoadedProposers, MethodRequest, SelectionError
from server.control.routing.rule_reader import RuleError, read_rules
from server.control.routing.rules import Rule
from server.control.switching.selection import resolve
from server.settings.access_settings import NEVER_EMPTY, AccessSettings
from server.settings.batch_settings import BatchSettings
from server.settings.demo import demo_settings
from server.settings.engine_arguments import EngineArguments
from server.settings.fleet_settings import FleetSettings
from server.settings.http_settings import HttpSettings
from server.settings.keys import Role
from server.settings.limit_settings import LimitSettings
from server.settings.model_paths import check_model
from server.settings.proposers import Proposers, with_speculative_config
from server.settings.recovery_settings import RecoverySettings
from server.settings.telemetry_settings import TelemetrySettings
from server.settings.types import (
    Count,
    JsonList,
    JsonObject,
    LoraModules,
    SettingError,
    Texts,
)

_RULES = "routing_rules"


class Settings(
    TelemetrySettings,
    LimitSettings,
    BatchSettings,
    AccessSettings,
    FleetSettings,
    HttpSettings,
    RecoverySettings,
    EngineArguments,
):
    """Everything that can be set. Without `model` it describes the demo."""

    model: str = Field(
        "",
        description="path or id of the target, or of a head that names it; the demo if not given",
    )
    served_model_name: Texts = Field(
        (), description="names that requests may give as `model`, the first one shown (repeatable)"
    )
    list_proposers_as_models: bool = Field(
        False, description="show NAME:PROPOSER for each proposer in /v1/models"
    )
    engine: Literal["vllm", "fake"] = Field(
        "vllm", description="vllm, or fake: no model, for tests and for measuring the gateway"
    )
    engine_args: JsonObject = Field(
        {}, description="JSON object of further arguments of the engine, by vLLM's names"
    )

    proposer: Proposers = Field(
        (),
        description='JSON object of a proposer: {"name": ..., "method": ..., '
        '"num_speculative_tokens": ..., "model": ...} and the method\'s options; or a method '
        "(repeatable)",
    )
    speculative_config: JsonObject = Field(
        {}, description="one more proposer, as vLLM describes it; its name is its method"
    )
    spec_model: str | None = Field(
        None, description="one more proposer as in vLLM: its model; --spec-method is its method"
    )
    spec_tokens: Count | None = Field(None, description="as in vLLM: the k of that proposer")
    lora_modules: LoraModules = Field(
        {}, description="LoRA adapters to begin with: NAME=PATH, or JSON with name and path"
    )
    primary: str | None = Field(None, description="proposer that `primary` stands for")
    backup: str | None = Field(None, description="proposer that `backup` stands for")
    spec_method: str = Field(
        NONE,
        description="method at start: a proposer, a policy, primary, backup or none (default: "
        "primary; if none is set, auto with proposers, else none)",
    )
    spec_policy: JsonObject = Field(
        {},
        description='JSON object of parameters of policies, such as {"load": '
        '{"disable_by_batch_size": 8}}',
    )
    routing_rules: JsonList = Field(
        (), description="JSON list of rules that choose a request's method; the first match wins"
    )
    max_speculative_tokens: Count | None = Field(
        None, description="draft capacity in tokens a step (default: the largest k, at least 5)"
    )

    chat_template: str | None = Field(
        None, description="file with a Jinja chat template, if not the tokenizer's"
    )
    trust_request_chat_template: bool = Field(
        False, description="let requests bring a chat template; one that never ends stops a thread"
    )
    special_tokens_in_chats: Literal["as-text", "as-tokens"] = Field(
        "as-text",
        description="what the text of a special token in a chat's texts is: text, or the token as "
        "in vLLM; a raw prompt's is the token",
    )
    enable_auto_tool_choice: bool = Field(
        True, description="let the model choose to call tools, if there is a parser of its calls"
    )
    tool_call_parser: str = Field(
        AUTO_PARSER,
        description="vLLM's parser of the calls that the model makes by itself, such as hermes; "
        "auto finds it from the model, none turns it off",
    )
    reasoning_parser: str = Field(
        AUTO_PARSER,
        description="vLLM's parser of the model's reasoning, such as deepseek_r1; auto finds it "
        "from the model, none turns it off",
    )

    _written_names: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Adds the defaults that depend on other settings; without a model they are the demo's."""
        values = {
            key: value
            for key, value in data.items()
            if value not in (None, "", (), []) or (value == "" and key in NEVER_EMPTY)
        }
        values = with_speculative_config(values)
        if not values.get("model"):
            values = {**demo_settings(values), **values}
        defaults = {
            "served_model_name": (str(values["model"]),),
            "spec_method": values.get("primary", AUTO if values.get("proposer") else NONE),
        }
        return {**defaults, **values}

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_engine_args()
        check_model("model", self.model)
        self._check_proposers()
        self._check_lora_modules()
        self._check_output_limits()
        self._check_stop_times()
        if self.chat_template is not None and not Path(self.chat_template).is_file():
            raise SettingError("chat_template", f"the file {self.chat_template!r} does not exist")
        for folder in self.allowed_local_path:
            if not Path(folder).is_dir():
                raise SettingError("allowed_local_path", f"the folder {folder!r} does not exist")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise SettingError("ssl_keyfile", f"needs {flag('ssl_certfile')}")
        if self.audit_required and self.audit_log is None:
            raise SettingError("audit_required", f"needs {flag('audit_log')}")
        return self

    def _check_engine_args(self) -> None:
        for key in self.engine_args:
            if key in RESERVED_ARGUMENTS:
                raise SettingError("engine_args", f"{key} is set by Specgate itself; leave it out")
            if key in type(self).model_fields:
                raise SettingError("engine_args", f"{key} has a setting of its own: {flag(key)}")

    def _check_output_limits(self) -> None:
        default, ceiling = self.default_max_tokens, self.max_output_tokens
        if default is not None and ceiling is not None and default > ceiling:
            raise SettingError(
                "default_max_tokens", f"{default} is above {flag('max_output_tokens')} {ceiling}"
            )

    def _check_stop_times(self) -> None:
        delay_s, timeout_s = self.shutdown_delay_s, self.shutdown_timeout_s
        if delay_s >= timeout_s:
            message = f"{delay_s:g} is not below {flag('shutdown_timeout_s')} {timeout_s:g}"
            raise SettingError("shutdown_delay_s", message)

    def _check_lora_modules(self) -> None:
        if self.lora_modules and not self.enable_lora:
            raise SettingError("lora_modules", f"needs {flag('enable_lora')}")
        for name in self.lora_modules:
            if name in self.served_model_name:
                raise SettingError("lora_modules", f"{name!r} is the name of the model itself")

    def _check_proposers(self) -> None:
        names = ", ".join(self.proposer_names) or "none is configured"
        for role in ("primary", "backup"):
            name = getattr(self, role)
            if name is not None and name not in self.proposer_names:
                raise SettingError(role, f"there is no proposer {name!r} (proposers: {names})")
        for setting, check in (
            ("spec_method", self._initial_method),
            ("spec_policy", lambda: read_policies(self.spec_policy, self._loaded())),
            (_RULES, lambda: self.rules(self.keys_at_start.names(Role.API))),
        ):
            try:
                check()
            except (SelectionError, PolicyError, RuleError) as error:
                # The paths of a rule begin with the setting's name, which the message has already.
                reason = re.sub(rf"^{setting}(: |\.)", "", str(error))
                raise SettingError(setting, reason) from None
        try:
            draft_capacity(self.proposer, self.max_speculative_tokens)
        except EngineConfigError as error:
            raise SettingError(error.setting, error.message) from None
        for spec in self.proposer:
            if spec.model is not None:
                check_model("proposer", spec.model, f"{spec.name}: model: ")

    def with_names(self, written_names: Mapping[str, str]) -> Self:
        """These settings, with the names of those that the user gave as the user wrote them."""
        copy = self.model_copy()
        copy._written_names = dict(written_names)
        return copy

    def written_name(self, setting: str) -> str:
        """A setting's name as the user wrote it: a flag, a variable or a key of the YAML file."""
        return self._written_names.get(setting, flag(setting))

    def _loaded(self) -> LoadedProposers:
        """The configured proposers, as selections see them."""
        infos = tuple(
            ProposerInfo(s.name, s.method, s.model, s.num_speculative_tokens) for s in self.proposer
        )
        return LoadedProposers(infos, self.primary, self.backup)

    def _initial_method(self) -> SpecMethod:
        """Raises `SelectionError`, as a switch to `spec_method` would."""
        return resolve(MethodRequest(self.spec_method, None, True, "spec_method"), self._loaded())

    def loadable_folders(self) -> tuple[str, ...]:
        """The folders below which admin requests may load: the allowed ones, and the models'."""
        return (*self.allowed_local_path, *filter(os.path.isdir, self._models()))

    def loadable_hub_ids(self) -> tuple[str, ...]:
        """Patterns of the hub ids that admin requests may load."""
        return (*self.allowed_hub_id, *(m for m in self._models() if not os.path.isdir(m)))

    def _models(self) -> tuple[str, ...]:
        """Every path and id of a model or an adapter that the settings name."""
        drafts = (spec.model for spec in self.proposer if spec.model is not None)
        return (self.model, *drafts, *self.lora_modules.values())

    def rules(self, api_key_names: Collection[str]) -> tuple[Rule, ...]:
        """The routing rules at start. Raises `RuleError`."""
        return read_rules(self.routing_rules, self._loaded(), api_key_names, _RULES)

    @property
    def initial_proposer(self) -> str:
        """The name of the proposer or policy that `spec_method` refers to, or `none`."""
        return self._initial_method().proposer

    @property
    def has_priorities(self) -> bool:
        """Whether the `priority` of requests decides their order."""
        return self.scheduling_policy == "priority"

    @property
    def proposer_names(self) -> tuple[str, ...]:
        """The configured proposers' names, in order."""
        return tuple(spec.name for spec in self.proposer)

    def engine_config(self) -> EngineConfig:
        """The engine's configuration: only arguments that are set, only plain types."""
        arguments: dict[str, Any] = {}
        for name in EngineArguments.model_fields:
            value = getattr(self, name)
            if value is not None:
                arguments[name] = int(value) if isinstance(value, ByteSize) else value
        return EngineConfig(
            model=self.model,
            served_model_name=self.served_model_name[0],
            proposers=self.proposer,
            max_speculative_tokens=self.max_speculative_tokens,
            arguments={**arguments, **self.engine_args},
            lora_modules=self.lora_modules,
            policies=self.spec_policy,
            primary=self.primary,
            tool_call_parser=_named(self.tool_call_parser)
            if self.enable_auto_tool_choice
            else None,
            reasoning_parser=_named(self.reasoning_parser),
            chat_template=self.chat_template,
            max_constraint_s=self.max_constraint_s,
            max_compiled_grammar_bytes=int(self.max_compiled_grammar_bytes),
            log_level="DEBUG" if self.log_level == "debug" else "ERROR",
            restart=self.restart_policy,
            hang=self.hang_policy,
        )


def _named(parser: str) -> str | None:
    return None if parser == NONE else parser


def flag(setting: str) -> str:
    """The setting's name on the command line."""
    return "MODEL" if setting == "model" else f"--{setting.replace('_', '-')}"

"""Flags, `SPECGATE_*` variables and a YAML file -> `Settings`, in this order of strength.

Flags and the file may have arguments of the engine, too, under its names. Values stay as written
until the class reads them, so that an error names the setting as the user wrote it;
pydantic-settings would name the field instead, and has no "did you mean".
"""

import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engine_adapter.proposers.checkpoint import CheckpointError
from engine_adapter.seam.factory import engine_flags
from engine_adapter.seam.text import short_repr
from server.settings import Settings, flag
from server.settings.access_settings import API_KEY_SETTINGS, NEVER_EMPTY, SECRET_SETTINGS
from server.settings.flags import PREFIX, REASONS, read_flags, refusal
from server.settings.speculators import with_target
from server.settings.types import SettingError, SettingsError, json_object
from server.text import did_you_mean

VLLM_API_KEY = "VLLM_API_KEY"
"""vLLM's variable with the key of its API, which is read if no other setting gives one."""

_SERVICE_LINK = (
    " (Kubernetes makes this variable for a service of this name; "
    "set enableServiceLinks: false in the pod)"
)


def load_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """The settings from the flags, the variables and the YAML file together.

    `--help` prints the help and exits. Raises `SettingsError`.
    """
    flags, flag_arguments = read_flags(argv)
    config = flags.pop("config", None) or environ.get(f"{PREFIX}CONFIG")
    file, file_arguments = _read_yaml(config) if config else ({}, {})
    return _settings(file, config, environ, flags, {**file_arguments, **flag_arguments})


def settings_in(args: Mapping[str, Any], where: str, environ: Mapping[str, str]) -> Settings:
    """The settings from the variables and a mapping such as the YAML file's.

    Args:
        where: what messages call the mapping.

    Raises:
        SettingsError: a setting is unknown or cannot work.
    """
    values, engine_arguments = _read_mapping(args, where)
    return _settings(values, where, environ, {}, engine_arguments)


def _settings(
    file: Mapping[str, Any],
    where: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    engine_arguments: Mapping[str, Any],
) -> Settings:
    variables = _read_environment(environ)
    # Weakest first: a later layer's name and value win.
    values = {**file, **variables, **flags}
    written_names = {
        **{name: f"{name} in {where}" for name in file},
        **{name: f"{PREFIX}{name.upper()}" for name in variables},
        **{name: flag(name) for name in flags},
    }
    if not API_KEY_SETTINGS & values.keys() and environ.get(VLLM_API_KEY):
        values["api_key"], written_names["api_key"] = environ[VLLM_API_KEY], VLLM_API_KEY
    try:
        if engine_arguments:
            values["engine_args"] = _merged(values.get("engine_args", {}), engine_arguments)
        return Settings(**with_target(values)).with_names(written_names)
    except ValidationError as error:
        raise SettingsError(*_lines(error, written_names)) from None
    except CheckpointError as error:
        raise SettingsError(f"{written_names['model']}: {error}") from None


def _merged(engine_args: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The setting `engine_args` as written, with the arguments that stand beside it.

    Raises `SettingsError` for an argument that is in both.
    """
    try:
        fields = json_object(engine_args)
    except ValueError as error:
        raise SettingsError(f"{flag('engine_args')}: {error}") from None
    for name in fields.keys() & arguments.keys():
        raise SettingsError(f"{flag(name)}: is in {flag('engine_args')}, too; give it once")
    return {**fields, **arguments}


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name a setting; an empty one counts as unset, as in compose files.

    An empty key is kept, so that it is refused.
    """
    values = {name: environ.get(PREFIX + name.upper()) for name in Settings.model_fields}
    return {
        name: value
        for name, value in values.items()
        if value or (value is not None and name in NEVER_EMPTY)
    }


def forget_keys(environ: MutableMapping[str, str]) -> None:
    """Removes the keys from the environment, which the engine's processes inherit."""
    for name in SECRET_SETTINGS:
        environ.pop(PREFIX + name.upper(), None)
    environ.pop(VLLM_API_KEY, None)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A line for each `SPECGATE_*` variable that no setting reads, with the likely intended one.

    This is not an error: Kubernetes makes such variables from the name of a service.
    """
    # The other commands read SPECGATE_URL.
    variables = [PREFIX + name.upper() for name in ("config", "url", *Settings.model_fields)]
    return [
        f"{name}: no setting reads this variable{did_you_mean(name, variables)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in variables
    ]


def _read_yaml(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's settings, and its arguments of the engine."""
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: cannot read {path}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"--config: {path} is not valid YAML: {_fault(error)}") from None
    if content is None:
        return {}, {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config: {path} must hold a mapping of settings")
    return _read_mapping(content, path)


def _read_mapping(content: Mapping[Any, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and the engine's arguments; a dash in a key becomes an underscore.

    Raises `SettingsError`.
    """
    values = {str(key).replace("-", "_"): value for key, value in content.items()}
    settings = {name: values.pop(name) for name in Settings.model_fields if name in values}
    if not values:
        return settings, {}
    flags = engine_flags(settings.get("engine", "vllm"))
    arguments = () if flags is None else flags.argument_names()
    known_names = [*Settings.model_fields, *arguments]
    refused_names = [name for name in values if name not in arguments or name in REASONS]
    if refused_names:
        raise SettingsError(
            *(f"{name} in {where}: {refusal(name, name, known_names)}" for name in refused_names)
        )
    return settings, values


def _fault(error: Exception) -> str:
    """What is wrong and where, without words of the file: they may be a key."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    reason = re.sub(r"""['"](?!<).{2,}['"]""", "'...'", problem or "it cannot be read")
    return reason if mark is None else f"{reason} (line {mark.line + 1}, column {mark.column + 1})"


def _lines(error: ValidationError, written_names: Mapping[str, str]) -> list[str]:
    """One line for each invalid setting."""
    lines = []
    for detail in error.errors():
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, SettingError):
            name, reason = cause.setting, str(cause)
        else:
            name, reason = str(detail["loc"][0]), _reason(detail)
        lines.append(f"{written_names.get(name, flag(name))}: {reason}")
    return lines


def _reason(detail: ErrorDetails) -> str:
    """Pydantic's message, and the value unless it is secret or in the message."""
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, ValueError):
        return str(cause)
    message = detail["msg"]
    if detail["loc"][0] in SECRET_SETTINGS:
        return message
    value = short_repr(detail["input"])
    hint = _SERVICE_LINK if value.startswith("'tcp://") else ""
    return f"{message[0].lower()}{message[1:]}, got {value}{hint}"

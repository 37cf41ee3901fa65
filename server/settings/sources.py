"""Flags, `SPECGATE_*` variables and a YAML file -> `Settings`, in this order of strength.

The flags are made from the fields of `Settings`. Values stay as written until the class reads
them, so that an error names the setting as the user wrote it; pydantic-settings would name the
field instead, and has no "did you mean".
"""

import argparse
import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from engine_adapter.proposers.checkpoint import CheckpointError
from engine_adapter.seam.text import short_repr
from server.settings import Settings, flag
from server.settings.access_settings import NEVER_EMPTY, SECRET_SETTINGS, AccessSettings
from server.settings.engine_arguments import EngineArguments
from server.settings.fleet_settings import FleetSettings
from server.settings.http_settings import HttpSettings
from server.settings.limit_settings import LimitSettings
from server.settings.recovery_settings import RecoverySettings
from server.settings.speculators import with_target
from server.settings.telemetry_settings import TelemetrySettings
from server.settings.types import SettingError
from server.text import did_you_mean

PREFIX = "SPECGATE_"
"""The prefix of the environment variables."""

_GROUPS: Mapping[str, type[BaseModel]] = {
    "connections": HttpSettings,
    "keys": AccessSettings,
    "fleet of several servers": FleetSettings,
    "limits": LimitSettings,
    "logs": TelemetrySettings,
    "hangs and deaths of the engine": RecoverySettings,
    "engine, under vLLM's names": EngineArguments,
}
"""Groups of flags in the help, after the settings of `Settings` itself."""

_SERVICE_LINK = (
    " (Kubernetes makes this variable for a service of this name; "
    "set enableServiceLinks: false in the pod)"
)


class SettingsError(Exception):
    """Settings that cannot work.

    Attributes:
        lines: one for each setting, with its name as the user wrote it.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises `SettingsError` instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message.removeprefix("argument "))


def load_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """The settings from the flags, the variables and the YAML file together.

    `--help` prints the help and exits. Raises `SettingsError`.
    """
    flags = _read_flags(argv)
    variables = _read_environment(environ)
    config = flags.pop("config", None) or variables.pop("config", None)
    file = _read_yaml(config) if config is not None else {}
    return _settings(file, config, variables, flags)


def settings_in(args: Mapping[str, Any], where: str, environ: Mapping[str, str]) -> Settings:
    """The settings from the variables and a mapping such as the YAML file's.

    Args:
        where: what messages call the mapping.

    Raises:
        SettingsError: a setting is unknown or cannot work.
    """
    variables = _read_environment(environ)
    variables.pop("config", None)
    return _settings(_read_mapping(args, where), where, variables, {})


def _settings(
    file: Mapping[str, Any],
    where: str | None,
    variables: Mapping[str, Any],
    flags: Mapping[str, Any],
) -> Settings:
    # Weakest first: a later layer's name and value win.
    written_names = {
        **{name: f"{name} in {where}" for name in file},
        **{name: f"{PREFIX}{name.upper()}" for name in variables},
        **{name: flag(name) for name in flags},
    }
    try:
        return Settings(**with_target({**file, **variables, **flags})).with_names(written_names)
    except ValidationError as error:
        raise SettingsError(*_lines(error, written_names)) from None
    except CheckpointError as error:
        raise SettingsError(f"{written_names['model']}: {error}") from None


def _read_flags(argv: Sequence[str]) -> dict[str, Any]:
    parser = _make_parser()
    namespace, unknown_words = parser.parse_known_args(argv)
    for word in unknown_words:
        if not word.startswith("-"):
            raise SettingsError(f"unexpected argument {word!r}")
        name = word.partition("=")[0]
        if name == "--model":
            raise SettingsError("--model: give the model without a flag: specgate serve MODEL")
        options = [option for action in parser._actions for option in action.option_strings]
        raise SettingsError(f"{name}: unknown flag{did_you_mean(name, options)}")
    return vars(namespace)


def _make_parser() -> argparse.ArgumentParser:
    """One argument per field; an argument that is not given is not in the result."""
    parser = _Parser(
        prog="specgate serve",
        usage="specgate serve [MODEL] [--flag VALUE]...",
        description="Serves MODEL with several speculative-decoding proposers over OpenAI's API.",
        epilog=f"Every flag is also a variable (--max-model-len: {PREFIX}MAX_MODEL_LEN) and a key "
        "of the YAML file (max_model_len). Flags win over variables, those over the file.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings")
    remaining = dict(Settings.model_fields)
    groups = [
        (title, {name: remaining.pop(name) for name in settings.model_fields})
        for title, settings in _GROUPS.items()
    ]
    for title, fields in [("models and methods", remaining), *groups]:
        group = parser.add_argument_group(title)
        for name, field in fields.items():
            _add_argument(group, name, field)
    return parser


def _add_argument(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    text = (field.description or "").replace("%", "%%")
    if name == "model":
        group.add_argument("model", metavar="MODEL", nargs="?", help=text)
    elif bool in (field.annotation, *get_args(field.annotation)):
        group.add_argument(flag(name), action=argparse.BooleanOptionalAction, help=text)
    elif name == "lora_modules":  # vLLM takes several after one flag
        group.add_argument(flag(name), action="extend", nargs="+", metavar="NAME=PATH", help=text)
    elif get_origin(field.annotation) is tuple or name == "named_api_key":
        group.add_argument(flag(name), action="append", metavar="VALUE", help=text)
    else:
        if field.default not in (None, "", {}) and "default" not in text:
            text += f" (default: {field.default})"
        group.add_argument(flag(name), metavar="VALUE", help=text)


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name a setting; an empty one counts as unset, as in compose files.

    An empty key is kept, so that it is refused.
    """
    names = ["config", *Settings.model_fields]
    values = {name: environ.get(PREFIX + name.upper()) for name in names}
    return {
        name: value
        for name, value in values.items()
        if value or (value is not None and name in NEVER_EMPTY)
    }


def forget_keys(environ: MutableMapping[str, str]) -> None:
    """Removes the keys from the environment, which the engine's processes inherit."""
    for name in SECRET_SETTINGS:
        environ.pop(PREFIX + name.upper(), None)


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


def _read_yaml(path: str) -> dict[str, Any]:
    """The file's settings."""
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: cannot read {path}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"--config: {path} is not valid YAML: {_fault(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config: {path} must hold a mapping of settings")
    return _read_mapping(content, path)


def _read_mapping(content: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """The settings; a dash in a key becomes an underscore. Raises `SettingsError`."""
    settings = {str(key).replace("-", "_"): value for key, value in content.items()}
    unknown = [name for name in settings if name not in Settings.model_fields]
    if unknown:
        raise SettingsError(
            *(
                f"{name} in {where}: unknown setting{did_you_mean(name, Settings.model_fields)}"
                for name in unknown
            )
        )
    return settings


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

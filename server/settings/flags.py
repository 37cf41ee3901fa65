"""The words of the command line -> settings as written, and arguments of the engine.

The flags are made from the fields of `Settings`. Any other word may be a flag of the engine's own:
only then is the engine imported.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine_adapter.seam.config import RESERVED_ARGUMENTS
from engine_adapter.seam.factory import EngineFlags, engine_flags
from server.settings import Settings, flag
from server.settings.access_settings import AccessSettings
from server.settings.batch_settings import BatchSettings
from server.settings.engine_arguments import EngineArguments
from server.settings.fleet_settings import FleetSettings
from server.settings.http_settings import HttpSettings
from server.settings.limit_settings import LimitSettings
from server.settings.recovery_settings import RecoverySettings
from server.settings.telemetry_settings import TelemetrySettings
from server.settings.types import SettingsError
from server.settings.vllm_flags import ALWAYS_SO, INSTEAD
from server.text import did_you_mean

PREFIX = "SPECGATE_"
"""The prefix of the environment variables."""

ENGINE_HELP = "--help=engine"
"""Shows the flags of the engine's own arguments."""

_GROUPS: Mapping[str, type[BaseModel]] = {
    "connections": HttpSettings,
    "keys": AccessSettings,
    "fleet of several servers": FleetSettings,
    "limits": LimitSettings,
    "files and batches": BatchSettings,
    "logs": TelemetrySettings,
    "hangs and deaths of the engine": RecoverySettings,
    "engine, under vLLM's names": EngineArguments,
}
"""Groups of flags in the help, after the settings of `Settings` itself."""

REASONS: Mapping[str, str] = {
    "model": "give the model without a flag: specgate serve MODEL",
    **{name: f"cannot be set: {reason}" for name, reason in RESERVED_ARGUMENTS.items()},
    **{name: f"is a setting of vLLM's server; here: {way}" for name, way in INSTEAD.items()},
}
"""Name that has no setting here -> why, for those that users of vLLM give."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises `SettingsError` instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message.removeprefix("argument "))


def read_flags(argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings as written, and the arguments of the engine.

    `--help` and `--help=engine` print help and exit. Raises `SettingsError`.
    """
    without_effect = {flag(name) for name in ALWAYS_SO}
    words = [word for word in map(_with_dashes, argv) if word not in without_effect]
    words = list(_repeated(words))
    parser = _make_parser()
    own_words = [word for word in words if word != ENGINE_HELP]
    namespace, unknown_words = parser.parse_known_args(own_words)
    _refuse(unknown_words, parser, only_known=True)
    flags = None
    if unknown_words or ENGINE_HELP in words:
        flags = engine_flags(getattr(namespace, "engine", "vllm"))
    if flags is not None:
        namespace, unknown_words = _with_engine_flags(parser, flags, words)
    _refuse(unknown_words, parser)
    values = vars(namespace)
    settings = {
        name: values.pop(name) for name in ("config", *Settings.model_fields) & values.keys()
    }
    return settings, values


def _with_engine_flags(
    parser: argparse.ArgumentParser, flags: EngineFlags, words: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """What the words say, if flags of the engine are among them; and words that are unknown."""
    flags.add_engine_flags(parser, {*Settings.model_fields, *INSTEAD})
    if ENGINE_HELP in words:
        print(_help_of_engine(parser))
        parser.exit()
    try:
        return parser.parse_known_args(flags.spelled_out(words))
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _help_of_engine(parser: argparse.ArgumentParser) -> str:
    """The help of the group that was added last."""
    group = parser._action_groups[-1]
    formatter = parser._get_formatter()
    formatter.start_section(group.title)
    formatter.add_arguments(group._group_actions)
    formatter.end_section()
    return formatter.format_help()


def _with_dashes(word: str) -> str:
    """The word, with dashes for the underscores in a flag's name."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    name, dot, key = name.partition(".")
    return name.replace("_", "-") + dot + key + equals + value


def _repeated(words: Sequence[str]) -> Iterator[str]:
    """The words, with the flag before each of several served names: vLLM has them after MODEL."""
    name, last_flag = flag("served_model_name"), ""
    for position, word in enumerate(words):
        if word.startswith("-"):
            last_flag = word
        elif last_flag == name != words[position - 1] and not words[0].startswith("-"):
            yield name
        yield word


def _refuse(
    words: Sequence[str], parser: argparse.ArgumentParser, *, only_known: bool = False
) -> None:
    """Raises `SettingsError` for the first word, all of which have no setting.

    Args:
        only_known: for the first word that has a reason of its own.
    """
    options = [option for action in parser._actions for option in action.option_strings]
    for word in words:
        spelling = word.partition("=")[0]
        name = spelling.removeprefix("--").partition(".")[0].replace("-", "_")
        if only_known and not (word.startswith("--") and name in REASONS):
            continue
        if not word.startswith("-"):
            raise SettingsError(f"unexpected argument {word!r}")
        raise SettingsError(f"{spelling}: {refusal(name, spelling, options, 'flag')}")


def refusal(name: str, spelling: str, known_names: Sequence[str], kind: str = "setting") -> str:
    """Why an unknown name is refused.

    Args:
        spelling: how the user wrote it.
        known_names: names that it may stand for, spelled in the same way.
    """
    return REASONS.get(name, f"unknown {kind}{did_you_mean(spelling, known_names)}")


def _make_parser() -> argparse.ArgumentParser:
    """One argument per field; an argument that is not given is not in the result."""
    parser = _Parser(
        prog="specgate serve",
        usage="specgate serve [MODEL] [--flag VALUE]...",
        description="Serves MODEL with several speculative-decoding proposers over OpenAI's API.",
        epilog=f"Every flag is also a variable (--max-model-len: {PREFIX}MAX_MODEL_LEN) and a key "
        "of the YAML file (max_model_len). Flags win over variables, those over the file. vLLM's "
        f"other engine arguments are flags and keys, too: {ENGINE_HELP} shows them.",
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

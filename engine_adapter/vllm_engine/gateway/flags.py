"""The flags of vLLM's engine arguments, read by vLLM's own parser."""

import argparse
import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine_adapter.seam.config import RESERVED_ARGUMENTS
from engine_adapter.vllm_engine import compat


def argument_names() -> frozenset[str]:
    """The engine arguments of the installed vLLM."""
    with _quiet():
        return frozenset(compat.AsyncEngineArgs.__dataclass_fields__)


def add_engine_flags(parser: argparse.ArgumentParser, settings: Collection[str]) -> None:
    """Adds the flags of vLLM's engine arguments to a parser.

    A setting of Specgate's own with the name of an argument gets vLLM's other spellings, such as
    `-tp`. A reserved argument gets none. What is not given is not in the parser's result.
    """
    with _quiet():
        theirs = compat.AsyncEngineArgs.add_cli_args(compat.FlexibleArgumentParser())
    group = parser.add_argument_group("engine arguments of vLLM")
    ours = {action.dest: action for action in parser._actions}
    for action in theirs._actions:
        if action.dest in ours:
            _add_spellings(parser, ours[action.dest], action)
        elif action.dest not in settings and action.dest not in RESERVED_ARGUMENTS:
            action.default = argparse.SUPPRESS
            if callable(action.type):
                action.type = _plain(action.type)
            group._add_action(action)


@contextmanager
def _quiet() -> Iterator[None]:
    """vLLM is imported in it: its warnings would stand before the error of a mistyped flag."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _add_spellings(
    parser: argparse.ArgumentParser, ours: argparse.Action, theirs: argparse.Action
) -> None:
    for spelling in theirs.option_strings:
        if ours.option_strings and spelling not in parser._option_string_actions:
            ours.option_strings = [*ours.option_strings, spelling]
            parser._option_string_actions[spelling] = ours


def _plain(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    """Reads a value as vLLM does; an object stays the JSON that it is, and is checked at start."""

    def read_plain(text: str) -> Any:
        return json.loads(text) if text.lstrip().startswith("{") else reader(text)

    read_plain.__name__ = getattr(reader, "__name__", "value")  # argparse names it in its errors
    return read_plain


def spelled_out(words: Sequence[str]) -> list[str]:
    """The words with one spelling for each flag.

    vLLM takes underscores for dashes, `-O3` for an optimization level, and `--name.key value` for
    a key of a JSON object. Raises `ValueError`.
    """
    parser = compat.FlexibleArgumentParser(add_help=False)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    # After a first word all others are taken as they are. vLLM would read a file that is named
    # after the word --config.
    safe_words = ["--config=" if word == "--config" else word for word in words]
    spelled_words: list[str] = parser.parse_args(["words", *safe_words]).words[1:]
    return ["--config" if word == "--config=" else word for word in spelled_words]

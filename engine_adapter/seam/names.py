"""The names that an operator gives: to proposers, API keys and routing rules."""

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Such a name, for `fullmatch`: in Python `$` also matches before a newline at the end."""

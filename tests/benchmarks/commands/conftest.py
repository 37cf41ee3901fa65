"""A server on a real port, as for the other commands that talk to one."""

from tests.server.commands.conftest import no_variables, url

__all__ = ["no_variables", "url"]

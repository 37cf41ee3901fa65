"""Bodies of requests that ask for much with little: each field that constrains, or that is a list.

Each was tried against a server that did not bound it, or is near one that was. Sizes are what it
takes to pass a bound, not more, so that a test that sends them all stays quick.
"""

from tests.server.hostile.forms import FORMS
from tests.server.hostile.lists import LISTS, TEXTS
from tests.server.hostile.schemas import SCHEMAS

ALL = (*LISTS, *TEXTS, *FORMS, *SCHEMAS)
"""The table."""

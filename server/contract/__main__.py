"""`python -m server.contract FILE`: writes the OpenAPI document, without starting anything."""

import json
import sys
from pathlib import Path

from server.app import ROUTERS
from server.contract.document import make_document


def text() -> str:
    """The document as its file has it."""
    routes = [route for router in ROUTERS for route in router.routes]
    return json.dumps(make_document(routes), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")

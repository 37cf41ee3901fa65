"""`python -m server.contract FILE`: writes the OpenAPI document, without starting anything."""

import json
import sys
from pathlib import Path

from server.app import ROUTERS
from server.contract.document import make_document

if __name__ == "__main__":
    routes = [route for router in ROUTERS for route in router.routes]
    document = json.dumps(make_document(routes), indent=1, ensure_ascii=False)
    Path(sys.argv[1]).write_text(f"{document}\n", encoding="utf-8")

"""One real server for all end-to-end tests."""

from collections.abc import Iterator

import pytest

from tests.e2e.served import Served, documented_url


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo on README's address; SIGTERM must end it with status 0 and nothing alarming."""
    served = Served.start(documented_url(), tmp_path_factory.mktemp("e2e") / "server.log")
    yield served
    assert served.process.poll() is None, f"the server died:\n{served.tail()}"
    assert served.stop() == 0, served.tail()
    log = served.log.read_text(errors="replace")
    assert "Traceback" not in log, served.tail()
    assert "leaked" not in log, served.tail()

"""One run of the server, without a server."""

import socket
from typing import Any, cast

import pytest

from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.types import EngineInfo
from server.commands import BAD_SETTING
from server.commands.server_process import ServerProcess, print_start_error
from server.control.admin.audit import Audit
from server.settings import Settings
from tests.garbage import is_searched


class Display:
    """Takes what is shown."""

    def ready(self, info: EngineInfo, port: int) -> None:
        self.port = port


def test_what_the_start_has_made_is_not_collected_again() -> None:
    display, item = Display(), ["an object"]
    assert is_searched(item)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = ServerProcess(Settings(engine="fake"), listener, cast(Any, display), Audit(), 10)
        process._ready(cast(Any, None))
        assert not is_searched(item)
        assert display.port == listener.getsockname()[1]


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("some_argument", "specgate: error: --engine-args: some_argument: must be 32"),
        ("VLLM_VARIABLE", "specgate: error: VLLM_VARIABLE: must be 32"),
        ("max_num_seqs", "specgate: error: --max-num-seqs: must be 32"),
    ],
)
def test_a_refused_setting_has_the_name_that_the_user_gave_it(
    setting: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = EngineConfigError(setting, "must be 32")
    assert print_start_error(error, Settings(engine="fake")) == BAD_SETTING
    assert capsys.readouterr().err.strip() == line

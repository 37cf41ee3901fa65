"""How a fleet switch grows: the servers that are measured, and the table."""

from functools import partial

import httpx
import pytest

from benchmarks.commands import run_command
from benchmarks.fleet.__main__ import make_parser, run
from benchmarks.fleet.run import FleetCost, growth, measure, replicas, table_row, traffic

fleet = partial(run_command, make_parser(), run)

SMALL = FleetCost(2, [1.0, 3.0, 2.0], [4.0, 4.0, 9.0], [5.0, 7.0, 6.0], [0.5, 0.5, 0.5], 1, 300.0)
LARGE = FleetCost(12, [2.0], [3.0], [26.0], [4.0], 1, 300.4)


def test_a_row_has_medians_and_the_slowest() -> None:
    assert table_row(SMALL) == "| 2 | 2.0 | 4.0 | 6.0 | 7.0 | 0.5 |"


def test_growth_is_that_between_the_two_largest() -> None:
    tiny = FleetCost(1, [0.0], [0.0], [100.0], [0.0], 1, 0.0)
    assert growth([tiny, LARGE, SMALL]) == (
        "Each replica adds 2.00 ms between 2 and 12. "
        "All replicas together take 300 MB in 1 processes."
    )


@pytest.mark.parametrize("flag", ["--replicas", "--rounds", "--per-process"])
def test_a_number_must_be_at_least_one(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fleet([flag, "0"])
    assert f"{flag}: must be an integer of at least 1, got '0'" in capsys.readouterr().err


@pytest.mark.prove
async def test_real_servers_are_switched_and_end_with_the_measurement() -> None:
    costs = [cost async for cost in measure([1, 3], 2, 2)]
    assert [cost.replicas for cost in costs] == [1, 3]
    assert all(len(cost.took_ms) == len(cost.cpu_ms) == 2 for cost in costs)
    assert {cost.processes for cost in costs} == {2}
    assert costs[0].memory_mb > 10
    one = await traffic()
    assert one.series > 100
    assert one.metrics_bytes > one.spec_method_bytes > 1000


@pytest.mark.prove
async def test_each_server_has_a_port_of_its_own() -> None:
    async with replicas(2, 2) as (urls, pids), httpx.AsyncClient() as client:
        assert len(set(urls)) == 2
        assert len(pids) == 1
        answers = [await client.get(f"{url}/ready") for url in urls]
        assert [answer.status_code for answer in answers] == [200, 200]
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{urls[0]}/ready")

"""When requests arrive."""

import numpy as np
import pytest

from benchmarks.load.arrivals import ClosedLoop, OpenLoop, Ramp


@pytest.mark.parametrize(("burstiness", "deviation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_of_an_open_loop_have_the_rate_and_the_burstiness(
    burstiness: float, deviation: float
) -> None:
    gaps = np.diff(OpenLoop(5.0, burstiness).times_s(20_000, seed=1), prepend=0.0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(deviation, rel=0.05)


def test_equal_seeds_give_equal_arrivals() -> None:
    loop = OpenLoop(3.0)
    assert loop.times_s(10, 7) == loop.times_s(10, 7)
    assert loop.times_s(10, 7) != loop.times_s(10, 8)
    assert loop.times_s(20, 7)[:10] == loop.times_s(10, 7), "a longer run begins in the same way"


def test_a_ramp_grows_to_its_top_and_shrinks_again() -> None:
    ramp = Ramp(1, 64, 60.0)
    limits = [ramp.limit(at) for at in np.linspace(0, 60, 121)]
    assert (limits[0], limits[60], limits[-1]) == (1, 64, 1)
    assert limits[:61] == sorted(limits[:61])
    assert limits == limits[::-1]
    assert limits[30] == 8, "half of the way is half of the logarithm"
    assert ramp.limit(1e9) == 1


def test_names_say_what_is_measured() -> None:
    assert ClosedLoop(8).name == "8 concurrent"
    assert OpenLoop(2.5).name == "2.5 requests/s"
    assert OpenLoop(2.5, 0.5).name == "2.5 requests/s, burstiness 0.5"
    assert Ramp(1, 64, 60).name == "ramp 1:64:1"

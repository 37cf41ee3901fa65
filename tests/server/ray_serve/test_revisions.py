"""A revision of `user_config` is applied once, by every replica for itself, with one result."""

import asyncio

import pytest

from server.fleet.coordinator import switch_fleet
from server.fleet.replica import FleetSwitch
from server.ray_serve.user_config import UserConfig, UserConfigError
from tests.server.conftest import StartGateway
from tests.server.ray_serve.house import NAMES, House


def config(revision: int, method: str, **more: object) -> UserConfig:
    fields = {"revision": revision, "spec_method": method, **more}
    return UserConfig.model_validate(fields)


async def declare(house: House, wanted: UserConfig, *names: str) -> None:
    """Serve gives it to these replicas, or to all."""
    await asyncio.gather(*(house.fleets[name].declare(wanted) for name in names or NAMES))


async def test_a_revision_is_applied_once(house: House) -> None:
    policy = {"auto": {"min_gain": 0.5}}
    await declare(house, config(1, "ngram", spec_policy=policy, mode="drain"))
    ((method, generation),) = set(house.states().values())
    assert (method, generation) == ("ngram", 1)
    desired = {repr(fleet.member.desired) for fleet in house.fleets.values()}
    assert len(desired) == 1
    assert repr(policy) in desired.pop()
    # What the API has set since stays.
    await switch_fleet(house.fleets["a"], FleetSwitch("none"))
    await declare(house, config(1, "ngram"))
    assert house.states() == dict.fromkeys(NAMES, ("none", 2))
    await declare(house, config(2, "suffix"))
    assert {method for method, _ in house.states().values()} == {"suffix"}


async def test_replicas_that_get_it_one_after_the_other_agree(house: House) -> None:
    for name in NAMES:
        await declare(house, config(1, "ngram"), name)
    assert house.states() == dict.fromkeys(NAMES, ("ngram", 1))


async def test_a_replica_that_missed_a_switch_agrees_too(house: House) -> None:
    house.hidden.add("d")
    await switch_fleet(house.fleets["a"], FleetSwitch("suffix"))
    house.hidden.clear()
    await declare(house, config(1, "ngram"))
    assert {method for method, _ in house.states().values()} == {"ngram"}
    for fleet in house.fleets.values():
        assert fleet._follower is not None
        await fleet._follower.learn()
    assert len(set(house.states().values())) == 1


async def test_a_replica_that_starts_with_an_old_revision_undoes_nothing(
    house: House, start: StartGateway
) -> None:
    await declare(house, config(1, "ngram"))
    await switch_fleet(house.fleets["a"], FleetSwitch("none"))
    await house.add("late", await start())
    await declare(house, config(1, "ngram"), "late")
    assert house.states() == dict.fromkeys((*NAMES, "late"), ("none", 2))


async def test_replicas_that_replace_all_others_bring_their_revision(
    house: House, start: StartGateway
) -> None:
    """Serve starts them beside the old ones, with other arguments and a higher revision."""
    await declare(house, config(1, "ngram"))
    await house.add("new", await start())
    assert house.states()["new"] == ("ngram", 1)
    await declare(house, config(2, "suffix"), "new")
    assert house.states()["new"] == ("suffix", 2)


async def test_a_revision_that_no_other_replica_answers_to_is_applied(start: StartGateway) -> None:
    house = House()
    await house.add("a", await start())
    house.hidden.add("a")
    await declare(house, config(1, "ngram"), "a")
    assert house.states() == {"a": ("ngram", 1)}
    await house.close()


async def test_a_revision_that_cannot_work_changes_nothing(house: House) -> None:
    with pytest.raises(UserConfigError, match="nope"):
        await declare(house, config(1, "nope"))
    assert house.states() == dict.fromkeys(NAMES, ("draft", 0))

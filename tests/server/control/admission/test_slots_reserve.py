"""Rows of the engine that a key with many requests leaves free for other keys."""

from tests.server.control.admission.crowd import Crowd, settle


async def flooded(reserved: int, of_request: int = 2, priority: int = 0) -> Crowd:
    """Eight rows and ten slots, of which a key with twenty requests has what it may."""
    crowd = Crowd(total=10, of_request=of_request, rows=8, reserved=reserved)
    for number in range(20):
        await crowd.come(f"flood {number}", key="flood", priority=priority)
    return crowd


async def test_the_first_sequence_of_another_key_starts_at_once_beside_a_flood() -> None:
    crowd = await flooded(reserved=1)
    assert crowd.slots.in_use == 7
    await crowd.come("other", key="other")
    assert crowd.started[-1] == "other"
    # It runs at once: the engine has eight rows.
    assert crowd.slots.in_use == 8
    assert not crowd.slots.may_start("other")
    await crowd.come("third", key="third")
    assert crowd.started[-1] == "third"
    await crowd.leave("flood 0", "other", "third")
    assert crowd.slots.in_use == 7


async def test_a_key_leaves_as_many_rows_free_as_it_holds_slots() -> None:
    crowd = await flooded(reserved=4)
    assert crowd.slots.in_use == 4
    for number in range(3):
        await crowd.come(f"other {number}", key="other")
    assert crowd.started[4:] == ["other 0", "other 1"]
    await crowd.come("third", key="third")
    assert crowd.started[6:] == ["third"]
    await crowd.leave("third")
    assert crowd.started[7:] == []
    # Two rows are free, and the key that holds two takes a third when it leaves as many.
    await crowd.leave("flood 0")
    assert crowd.started[7:] == ["other 2"]
    await crowd.leave(*crowd.tickets)
    assert crowd.slots.in_use == 0


async def test_many_keys_use_all_slots() -> None:
    crowd = Crowd(total=10, rows=8, reserved=2)
    for number in range(12):
        await crowd.come(str(number), key=str(number))
    assert (crowd.slots.in_use, crowd.slots.num_queued) == (10, 2)
    await crowd.leave(*crowd.tickets)


async def test_a_key_that_is_alone_has_all_slots() -> None:
    crowd = Crowd(total=10, rows=8, reserved=2)
    crowd.is_shared = False
    for number in range(20):
        await crowd.come(str(number), key="only")
    assert crowd.slots.in_use == 10
    # Other keys are added meanwhile: what runs continues, and what starts next leaves rows free.
    crowd.is_shared = True
    await crowd.leave("0", "1", "2", "3")
    assert crowd.slots.in_use == 6
    await crowd.come("other", key="other")
    assert crowd.started[-1] == "other"
    crowd.is_shared = False
    await crowd.leave("other")
    assert crowd.slots.in_use == 10


async def test_an_urgent_flood_leaves_rows_free_and_holds_up_no_other_key() -> None:
    crowd = await flooded(reserved=1, priority=-5)
    assert crowd.slots.in_use == 7
    await crowd.come("other", key="other", priority=5)
    assert crowd.started[-1] == "other"
    await crowd.leave("other")
    crowd.slots.close()
    await crowd.come("held", key="other", priority=5)
    crowd.slots.open()
    await settle()
    assert crowd.started[-1] == "held"
    await crowd.leave(*crowd.tickets)
    assert crowd.slots.in_use == 0


async def test_a_sequence_of_several_slots_is_not_overtaken_for_ever_beside_a_reserve() -> None:
    crowd = await flooded(reserved=1, of_request=3)
    for name in (f"flood {number}" for number in range(7, 20)):
        await crowd.leave(name)
    await crowd.come("wide", key="flood", slots=3)
    await crowd.leave("flood 0")
    await crowd.come("narrow", key="flood")
    assert not crowd.slots.may_start("flood")
    assert crowd.slots.may_start("other")
    await crowd.leave("flood 1", "flood 2")
    assert crowd.started[7:] == ["wide"]
    await crowd.leave("flood 3")
    assert crowd.started[8:] == ["narrow"]
    await crowd.leave(*crowd.tickets)


async def test_a_cancelled_request_of_a_flood_takes_no_reserve_with_it() -> None:
    crowd = await flooded(reserved=1)
    for task in crowd._tasks[7:]:
        task.cancel()
    await settle()
    assert (crowd.slots.in_use, crowd.slots.num_queued) == (7, 0)
    assert not crowd.slots.may_start("flood")
    await crowd.leave("flood 0")
    assert crowd.slots.may_start("flood")
    await crowd.leave(*crowd.tickets)
    assert crowd.slots.in_use == 0

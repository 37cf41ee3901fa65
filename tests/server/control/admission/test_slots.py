"""Who gets the next slot: over keys, requests and priorities; and what a drain closes."""

import asyncio
from collections import Counter
from random import Random

import pytest

from tests.server.control.admission.crowd import Crowd, cost, settle


async def test_a_request_has_a_slice_of_its_sequences_at_a_time() -> None:
    crowd = Crowd(total=4, of_request=2)
    await crowd.come("big", 5)
    assert (crowd.started, crowd.slots.in_use) == (["big"] * 2, 2)
    await crowd.end("big", 0)
    assert (len(crowd.started), crowd.slots.in_use) == (3, 2)
    await crowd.leave("big")
    assert crowd.slots.in_use == 0


async def test_a_small_request_starts_beside_large_ones() -> None:
    crowd = Crowd(total=4, of_request=2)
    await crowd.come("big", 50)
    await crowd.come("big too", 50)
    await crowd.come("small")
    assert crowd.slots.num_queued == 1
    await crowd.end("big")
    assert crowd.started[-1] == "small"
    await crowd.leave("big", "big too", "small")
    assert (crowd.slots.in_use, crowd.slots.num_queued) == (0, 0)


async def test_the_queue_is_served_in_order_of_arrival() -> None:
    crowd = Crowd(total=1)
    for number in range(6):
        await crowd.come(str(number))
    assert crowd.slots.num_queued == 5
    for number in range(6):
        await crowd.leave(str(number))
    assert crowd.started == list("012345")


async def test_a_request_that_arrives_late_does_not_overtake_one_that_has_ended_a_sequence() -> (
    None
):
    crowd = Crowd(total=1, of_request=1)
    await crowd.come("a", 2)
    await crowd.come("b")
    await crowd.end("a", 0)
    assert crowd.started == ["a", "a"]
    await crowd.leave("a", "b")


async def test_a_key_that_floods_does_not_hold_up_another() -> None:
    crowd = Crowd(total=4)
    for number in range(40):
        await crowd.come(f"flood {number}", key="flood")
    for number in range(4):
        await crowd.come(f"other {number}", key="other")
    for number in range(4):
        await crowd.leave(f"flood {number}")
    names = Counter(name.split()[0] for name in crowd.started[4:])
    assert names == {"other": 2, "flood": 2}
    await crowd.leave(*crowd.tickets)


async def test_the_lowest_priority_is_first_over_all_keys() -> None:
    crowd = Crowd(total=1)
    await crowd.come("first")
    await crowd.come("later", priority=5, key="a")
    await crowd.come("middle", priority=1, key="a")
    await crowd.come("urgent", priority=-3, key="b")
    for name in ("first", "urgent", "middle", "later"):
        await crowd.leave(name)
    assert crowd.started == ["first", "urgent", "middle", "later"]


async def test_a_sequence_of_several_slots_is_not_overtaken_for_ever() -> None:
    crowd = Crowd(total=4, of_request=3)
    for name in "abcd":
        await crowd.come(name)
    await crowd.come("wide", slots=3)
    await crowd.come("e")
    await crowd.leave("a")
    # One slot is free, and kept for the request that needs three.
    assert (crowd.started, crowd.slots.in_use) == (list("abcd"), 3)
    assert not crowd.slots.ticket(cost()).start_now()
    await crowd.leave("b", "c")
    assert crowd.started == [*"abcd", "wide"]
    await crowd.leave("d")
    assert crowd.started[-1] == "e"
    await crowd.leave("wide", "e")


async def test_a_request_that_waits_for_slots_and_leaves_lets_others_pass() -> None:
    crowd = Crowd(total=2, of_request=2)
    await crowd.come("a")
    await crowd.come("wide", slots=2)
    await crowd.come("b")
    await crowd.leave("wide")
    assert crowd.started == ["a", "b"]
    await crowd.leave("a", "b")


async def test_more_slots_than_a_request_may_have_are_not_taken() -> None:
    crowd = Crowd(total=4, of_request=2)
    await crowd.come("wide", 3, slots=100)
    assert (crowd.started, crowd.slots.in_use) == (["wide"], 2)
    await crowd.leave("wide")


async def test_long_prompts_of_a_request_are_read_one_by_one() -> None:
    crowd = Crowd(total=9, of_request=9, prompt_tokens=100)
    ticket = await crowd.come("long", 3, prompt_costs=[500, 60, 60])
    assert len(crowd.started) == 1
    ticket.prompt_read(0)
    await settle()
    # 60 and 60 are above 100 together.
    assert len(crowd.started) == 2
    await crowd.end("long", 1)
    assert len(crowd.started) == 3
    await crowd.leave("long")


async def test_short_prompts_are_read_together() -> None:
    crowd = Crowd(total=9, of_request=9, prompt_tokens=100)
    await crowd.come("short", 9, prompt_costs=[10] * 9)
    assert len(crowd.started) == 9
    await crowd.leave("short")


async def test_a_closed_queue_holds_new_requests_and_lets_started_ones_run() -> None:
    crowd = Crowd(total=4, of_request=2)
    await crowd.come("begun", 3)
    crowd.slots.close()
    await crowd.come("a")
    await crowd.come("b")
    await crowd.end("begun", 0)
    assert crowd.started == ["begun"] * 3
    assert (crowd.slots.num_queued, crowd.slots.queue.prompt_tokens) == (2, 2)
    crowd.slots.open()
    await settle()
    assert crowd.started[3:] == ["a", "b"]
    await crowd.leave("begun", "a", "b")


async def test_a_start_that_is_given_back_waits_at_its_old_place() -> None:
    crowd = Crowd(total=2)
    ticket = await crowd.come("a")
    crowd.slots.close()
    await crowd.come("b")
    ticket.undo_start()
    again = asyncio.create_task(ticket.start())
    await settle()
    assert (crowd.slots.in_use, crowd.slots.num_queued) == (0, 2)
    crowd.slots.open()
    await again
    await settle()
    assert ticket.number < crowd.tickets["b"].number
    assert crowd.slots.in_use == 2
    await crowd.leave("a", "b")


@pytest.mark.parametrize("cancelled", [0, 2, 4])
async def test_a_cancelled_request_leaves_the_queue(cancelled: int) -> None:
    crowd = Crowd(total=1)
    await crowd.come("first")
    for number in range(5):
        await crowd.come(str(number))
    crowd._tasks[1 + cancelled].cancel()
    await settle()
    assert (crowd.slots.num_queued, crowd.slots.queue.prompt_tokens) == (4, 4)
    for name in ("first", *(str(n) for n in range(5) if n != cancelled)):
        await crowd.leave(name)
    assert crowd.started[1:] == [str(n) for n in range(5) if n != cancelled]


async def test_a_request_cancelled_when_its_turn_comes_passes_it_on() -> None:
    crowd = Crowd(total=1)
    await crowd.come("first")
    await crowd.come("gone")
    await crowd.come("next")
    crowd.tickets["first"].leave()
    crowd._tasks[1].cancel()
    await settle()
    await crowd.leave("gone")
    assert crowd.started == ["first", "next"]
    await crowd.leave("next")


async def test_a_slot_that_is_free_in_the_moment_of_a_cancellation_goes_to_the_next() -> None:
    crowd = Crowd(total=1)
    await crowd.come("first")
    await crowd.come("gone")
    await crowd.come("next")
    crowd._tasks[1].cancel()
    crowd.tickets["first"].leave()
    await settle()
    await crowd.leave("gone")
    assert crowd.started == ["first", "next"]
    await crowd.leave("next")
    assert (crowd.slots.in_use, crowd.slots.num_queued) == (0, 0)


@pytest.mark.parametrize("reserved", [0, 1, 2, 3])
async def test_any_order_of_ends_leaves_no_slot_taken(reserved: int) -> None:
    crowd = Crowd(total=5, of_request=3, rows=4, reserved=reserved)
    for number in range(30):
        await crowd.come(
            str(number), 1 + number % 4, key=str(number % 3), slots=1 + number % 2, priority=number
        )
    for number in range(0, 30, 2):
        await crowd.leave(str(number))
    assert crowd.slots.in_use <= 5
    for number in range(29, 0, -2):
        await crowd.leave(str(number))
    assert (crowd.slots.in_use, crowd.slots.num_queued, crowd.slots.queue.prompt_tokens) == (
        0,
        0,
        0,
    )


@pytest.mark.parametrize("reserved", range(8))
async def test_every_sequence_starts_in_the_end(reserved: int) -> None:
    crowd, random = Crowd(total=10, of_request=4, rows=8, reserved=reserved), Random(reserved)
    counts = Counter({str(number): random.randint(1, 4) for number in range(60)})
    ended: Counter[str] = Counter()
    for name, count in counts.items():
        key, slots = random.choice("aaaabc"), random.randint(1, 4)
        await crowd.come(name, count, key=key, slots=slots, priority=random.randint(-1, 1))
        assert crowd.slots.in_use <= 10
    while running := sorted((Counter(crowd.started) - ended).elements()):
        name = random.choice(running)
        await crowd.end(name, ended[name])
        ended[name] += 1
    assert ended == counts
    assert (crowd.slots.in_use, crowd.slots.num_queued) == (0, 0)

"""Workloads: prompts, halves, order."""

import json
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.load.prompts import Split
from benchmarks.load.structured import SCHEMAS
from benchmarks.load.workloads import KINDS, WORKLOADS, workload

SEED = 1


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_halves_share_no_prompt(name: str) -> None:
    whole, tune, report = (
        {json.dumps(dict(p.content)) for p in chain(*workload(name, split).draw(3000, 0, SEED))}
        for split in (Split.ALL, Split.TUNE, Split.REPORT)
    )
    assert tune
    assert report
    assert not tune & report
    assert tune | report == whole
    assert 0.8 < len(tune) / len(report) < 1.25


def test_rag_is_half_quotes_and_half_free() -> None:
    labels = [prompt.label for prompt in workload("rag", Split.REPORT).draw(20, 0, SEED)[0]]
    assert labels == ["quote", "free"] * 10


def test_mixed_has_all_kinds_and_every_kind_has_every_temperature() -> None:
    mixed = workload("mixed", Split.ALL)
    assert {prompt.label for prompt in mixed.draw(8, 0, SEED)[0]} == {
        "quote",
        "free",
        "edit",
        "random",
    }
    assert len(mixed.temperatures) == 3


def test_structured_chats_ask_for_a_schema_or_for_a_call() -> None:
    drawn = workload("structured", Split.REPORT).draw(40, 0, SEED)[0]
    assert [prompt.label for prompt in drawn] == ["schema", "tool"] * 20
    formats = [p.content["response_format"]["json_schema"]["schema"] for p in drawn[::2]]
    assert all(one in SCHEMAS for one in formats)
    assert len({json.dumps(one) for one in formats}) == len(SCHEMAS)
    assert all(p.content["tool_choice"] == "required" for p in drawn[1::2])


@pytest.mark.parametrize(
    ("name", "labels"),
    [("shift", ["quote", "free"]), ("shift:random:code-edit:quote", ["random", "edit", "quote"])],
)
def test_shift_has_a_phase_for_each_kind(name: str, labels: list[str]) -> None:
    phases = workload(name, Split.ALL).draw(11, 0, SEED)
    assert [{prompt.label for prompt in phase} for phase in phases] == [{la} for la in labels]
    assert {len(phase) for phase in phases} == {11}


@pytest.mark.parametrize("name", ["quote", "random", "shift:random:random"])
def test_a_prompt_comes_again_only_when_all_have_been_used(name: str) -> None:
    source = workload(name, Split.ALL)
    half = source.size // 2
    drawn = [list(chain(*source.draw(half, half * number, SEED))) for number in range(4)]
    once = {p.id for p in drawn[0]} | {p.id for p in drawn[1]}
    assert len(once) == source.size
    again = [p.id for p in (*drawn[2], *drawn[3])]
    assert set(again) == once
    assert again != [p.id for p in (*drawn[0], *drawn[1])], "the order changes"


def test_the_order_depends_only_on_the_seed() -> None:
    ids = [[p.id for p in workload("rag", Split.ALL).draw(30, 5, seed)[0]] for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]


def test_code_edits_show_code_and_ask_for_another_name() -> None:
    edits = KINDS["code-edit"]()
    assert len(edits) >= 40
    assert len({edit.id for edit in edits}) == len(edits)
    for edit in edits:
        code, _, question = edit.content["messages"][0]["content"].rpartition("\n\n")
        old, new = question.split("`")[1::2]
        assert f" {old}" in code
        assert new != old
        assert new not in code


def test_random_prompts_have_no_common_words() -> None:
    texts = [prompt.content["messages"][0]["content"] for prompt in KINDS["random"]()]
    assert KINDS["random"]()[0].content["messages"][0]["content"] == texts[0]
    assert len(set(texts[0].split()) & set(texts[1].split())) < 3
    assert workload("random", Split.ALL).temperatures == (2.0,)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("shift:quote", "give two kinds"),
        ("shift:quote:slow", "no kind of prompts 'slow'; the kinds are quote, free"),
    ],
)
def test_wrong_phases_are_refused(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        workload(name, Split.ALL)


def test_a_file_without_prompts_in_the_split_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"prompt": "a"}\n')
    assert workload(str(path), Split.TUNE).size == 1
    with pytest.raises(ValueError, match="the split report has no prompts"):
        workload(str(path), Split.REPORT)
    with pytest.raises(OSError, match=r"nothing\.jsonl"):
        workload(str(tmp_path / "nothing.jsonl"), Split.ALL)

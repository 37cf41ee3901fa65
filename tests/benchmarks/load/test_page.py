"""The report: complete, self-contained, and safe with any text."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from benchmarks.load import plots
from benchmarks.load.arrivals import ClosedLoop, Ramp
from benchmarks.load.page import page
from benchmarks.load.results import all_results, all_tables
from tests.benchmarks.load.made import failed, made_pass, sample

pytest.importorskip("matplotlib")


class Reader(HTMLParser):
    """Collects tags, ids and loaded addresses; notes what is not closed."""

    VOID = frozenset({"meta", "br", "path", "use", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text() -> str:
    passes = [
        made_pass(
            side, [sample(0, 100.0 * factor), sample(1, 50.0, label="a $b$ <i>")], arrivals=load
        )
        for load in (ClosedLoop(2), Ramp(1, 8, 1.0))
        for side, factor in (("base", 1.0), ("other", 2.0))
    ]
    results = all_results(passes, ["base", "other"], {})
    return page({"command": "specgate bench load --side '<script>'"}, passes, results)


def test_the_page_is_well_formed_and_loads_nothing(text: str) -> None:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert {"script", "link", "img", "iframe"} & set(reader.tags) == set()
    assert [address for address in reader.loads if not address.startswith("#")] == []
    assert not re.search(r"url\((?!#)|@import", text)
    assert "&lt;script&gt;" in text
    assert "<i>" not in text


def test_ids_are_unique_and_every_reference_has_its_id(text: str) -> None:
    reader = Reader()
    reader.feed(text)
    assert len(set(reader.ids)) == len(reader.ids) > 50
    references = {address[1:] for address in reader.loads} | set(
        re.findall(r"url\(#([^)]+)\)", text)
    )
    assert references <= set(reader.ids)


def test_the_plots_follow_the_colours_of_the_page(text: str) -> None:
    assert plots.FOREGROUND not in text
    assert text.count("currentColor") > 50
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"fill: ?(#000000|#ffffff|black|white)", text)


def test_there_is_a_section_for_each_condition_with_its_plots(text: str) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "Throughput", "rag, 2 concurrent", "rag, ramp 1:8:1", "Environment and plan",
    ]  # fmt: skip
    # Throughput; latencies and labels of two conditions; the timeline of the ramp.
    assert text.count("<svg") == 1 + 2 * 2 + 1


def test_equal_results_give_an_equal_page(text: str) -> None:
    passes = [made_pass("base", [sample(0)])]
    pages = {page({}, passes, all_results(passes, ["base"], {})) for _ in range(2)}
    assert len(pages) == 1


def test_a_side_without_any_success_is_shown_with_its_errors() -> None:
    passes = [made_pass("base", [sample(0)]), made_pass("dead", [failed(0, "503")])]
    results = all_results(passes, ["base", "dead"], {"e2e": 1.0})
    markdown = "\n".join(line for t in all_tables(results, "base") for line in t.markdown())
    assert "| `dead` | 1 | 503: 1 | 0.0 | 0.00 |  |  |  |  |  | 0.00/s (0%) |" in markdown
    note = "1 of 1 requests failed, the first with 503: why"
    assert f"\n`dead`: {note}\n" in markdown
    assert f"<p><code>dead</code>: {note}</p>" in page({}, passes, results)


def test_one_slow_request_does_not_squeeze_the_curves() -> None:
    fast = [sample(i, 100.0 + i) for i in range(200)]
    condition = made_pass("base", [*fast, sample(200, 9000.0)])
    drawn = plots.latency_curves(0, [condition], ["base"])
    ticks = [float(number) for number in re.findall(r">([\d.]+)</text>", drawn)]
    assert 250 < max(ticks) < 400


def test_tokens_are_counted_in_the_bin_of_their_event() -> None:
    late = sample(0, sent_s=1.0, times_ms=[100.0, 900.0, 1100.0], emitted=[1, 4, 6], tokens=6)
    rate = plots.token_rate(made_pass("a", [late]), np.array([0.0, 1.0, 2.0, 4.0]))
    assert rate.tolist() == [0.0, 4.0, 1.0]

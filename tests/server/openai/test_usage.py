"""The arithmetic of the response's statistics."""

from engine_adapter.seam.counts import ProposerCounts, SpecStats
from server.openai.usage import acceptance_histogram, speculative_decoding

NGRAM = ProposerCounts(
    drafts=10, drafted=40, accepted=17, accepted_per_position=(8, 5, 3, 1), emitted=27
)
DRAFT = ProposerCounts(drafts=4, drafted=8, accepted=6, accepted_per_position=(4, 2), emitted=10)


def test_figures_of_one_proposer() -> None:
    stats = SpecStats(decode_steps=12, decode_tokens=30, by_proposer={"ngram": NGRAM})
    assert speculative_decoding(stats, "ngram", 4) == {
        "mean_acceptance_length": 2.7,
        "mean_tokens_per_step": 2.5,
        "draft_acceptance_rate": 0.425,
        "acceptance_histogram": [2, 3, 2, 2, 1],
        "num_spec_steps": 10,
        "num_draft_tokens": 40,
        "num_accepted_draft_tokens": 17,
        "num_spec_tokens": 4,
        "proposer": "ngram",
        "by_proposer": {"ngram": {"drafts": 10, "drafted": 40, "accepted": 17}},
    }


def test_without_drafts_there_is_one_token_per_step() -> None:
    figures = speculative_decoding(SpecStats(), "none", 0)
    assert figures["mean_acceptance_length"] == figures["mean_tokens_per_step"] == 1.0
    assert figures["draft_acceptance_rate"] == 0.0
    assert figures["acceptance_histogram"] == [0]
    assert figures["by_proposer"] == {}


def test_a_sum_adds_each_proposer_to_itself() -> None:
    parts = [
        SpecStats(10, 27, {"ngram": NGRAM}),
        SpecStats(4, 10, {"draft": DRAFT}),
        SpecStats(10, 27, {"ngram": NGRAM}),
    ]
    whole = sum(parts, SpecStats())
    assert (whole.decode_steps, whole.decode_tokens) == (24, 64)
    assert whole.by_proposer["draft"] == DRAFT
    assert whole.by_proposer["ngram"].accepted_per_position == (16, 10, 6, 2)
    assert whole.by_proposer["ngram"].drafts == 20


def test_proposers_of_different_depth_share_one_histogram() -> None:
    stats = SpecStats(14, 37, {"ngram": NGRAM, "draft": DRAFT})
    figures = speculative_decoding(stats, "auto", 4)
    assert figures["acceptance_histogram"] == [2, 5, 4, 2, 1]
    assert sum(figures["acceptance_histogram"]) == figures["num_spec_steps"] == 14
    accepted = sum(j * count for j, count in enumerate(figures["acceptance_histogram"]))
    assert accepted == figures["num_accepted_draft_tokens"] == 23


def test_the_histogram_fits_k_and_longer_drafts() -> None:
    # After a switch, drafts can be longer or shorter than the k selected at admission.
    assert acceptance_histogram(DRAFT, 5) == [0, 2, 2, 0, 0, 0]
    assert acceptance_histogram(NGRAM, 2) == [2, 3, 2, 2, 1]

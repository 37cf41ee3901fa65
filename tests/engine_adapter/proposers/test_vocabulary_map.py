"""Vocabularies map by the bytes of their tokens' texts, also between kinds of tokenizers."""

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from demo import model_path
from engine_adapter.proposers.contract import OptionError
from engine_adapter.proposers.vocabulary_map import (
    NO_TOKEN,
    VocabularyMap,
    load_tokenizer,
    map_vocabularies,
)
from tests.engine_adapter.proposers import tokenizers_of_kinds as kinds

ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
OTHER_ENDS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}

KINDS: dict[str, Callable[..., Any]] = {
    "byte level": kinds.byte_level,
    "byte fallback": kinds.byte_fallback,
    "metaspace": kinds.metaspace,
}


def mapped(target: Any, draft: Any, **sizes: int) -> VocabularyMap:
    of_target = sizes.get("target_size") or len(target)
    of_draft = sizes.get("draft_size") or len(draft)
    return map_vocabularies(target, draft, of_target, of_draft)


def token(tokenizer: Any, piece: str) -> int:
    found: int = tokenizer.get_vocab()[piece]
    return found


def text(tokenizer: Any, after: str, piece_id: int) -> str:
    """A token's text as the tokenizer itself decodes it after another one."""
    decode = tokenizer.backend_tokenizer.decode
    first = token(tokenizer, after)
    whole: str = decode([first, piece_id], skip_special_tokens=False)
    return whole.removeprefix(decode([first], skip_special_tokens=False))


# -- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "draft"), product(KINDS, KINDS))
def test_tokens_that_map_decode_to_the_same_text(target: str, draft: str) -> None:
    both = KINDS[target](ENDS), KINDS[draft](OTHER_ENDS)
    found = mapped(*both)
    pairs = [(t, d) for t, d in enumerate(found.outputs.tolist()) if d != NO_TOKEN]
    assert len(pairs) > 90
    for pair in pairs:
        if pair[0] == both[0].eos_token_id:
            continue
        texts = [text(tokenizer, "x", one) for tokenizer, one in zip(both, pair, strict=True)]
        # A byte that is not a whole character is decoded to the mark of an error in all kinds.
        assert texts[0] == texts[1]


@pytest.mark.parametrize(("target", "draft"), product(KINDS, KINDS))
def test_words_spaces_and_letters_map_between_all_kinds(target: str, draft: str) -> None:
    spelled = {
        "byte level": ("Ġthe", "Ġ", "ing", "x", "Ã©"),
        "byte fallback": ("▁the", "▁", "ing", "x", "é"),
        "metaspace": ("▁the", "▁", "ing", "x", "é"),
    }
    one, other = KINDS[target](), KINDS[draft]()
    found = mapped(one, other)
    for of_target, of_draft in zip(spelled[target], spelled[draft], strict=True):
        assert found.outputs[token(one, of_target)] == token(other, of_draft)
        assert found.inputs[token(one, of_target)] == token(other, of_draft)


def test_bytes_map_between_byte_level_and_byte_fallback() -> None:
    one, other = kinds.byte_level(), kinds.byte_fallback()
    found = mapped(one, other)
    # A newline, and the first byte of a letter with two.
    assert found.outputs[token(one, "Ċ")] == token(other, "<0x0A>")
    assert found.outputs[token(one, "Ã")] == token(other, "<0xC3>")


def test_of_tokens_with_one_text_the_one_that_is_used_maps() -> None:
    """`x` and `<0x78>` are the same text; a tokenizer writes the letter."""
    one, other = kinds.byte_fallback(), kinds.byte_fallback(first=5)
    found = mapped(one, other)
    assert found.outputs[token(one, "x")] == token(other, "x")
    assert found.outputs[token(one, "<0x78>")] == NO_TOKEN
    assert found.inputs[token(one, "<0x78>")] == token(other, "x")
    drafted = found.outputs[found.outputs != NO_TOKEN]
    assert len(set(drafted.tolist())) == len(drafted)


def test_a_permutation_of_the_ids_is_found() -> None:
    one, other = kinds.byte_level(ENDS), kinds.byte_level(ENDS, first=17)
    found = mapped(one, other)
    pieces = one.get_vocab()
    assert {p: found.outputs[i] for p, i in pieces.items() if p != "<s>"} == {
        p: i for p, i in other.get_vocab().items() if p != "<s>"
    }
    assert {p: found.inputs[i] for p, i in pieces.items()} == other.get_vocab()


def test_every_text_of_the_demos_tokenizer_is_what_it_decodes_to() -> None:
    one = load_tokenizer(str(model_path("target")), None, trust_remote_code=False)
    found = mapped(one, one)
    assert found.inputs.tolist() == list(range(len(one)))
    assert found.num_mapped == len(one) - 1, "all but the beginning of a text"
    assert (found.num_target, found.num_draft) == (len(one), len(one))
    other = kinds.byte_fallback(extra=["▁return"])
    to_other = mapped(one, other)
    assert to_other.outputs[token(one, "Ġreturn")] == token(other, "▁return")


# -- tokens that do not map ------------------------------------------------------------------


def test_a_token_without_a_counterpart_is_never_drafted() -> None:
    one = kinds.byte_level(extra=["Ġtokenizer"])
    other = kinds.byte_level(extra=["Ġdraft"])
    found = mapped(one, other)
    assert found.outputs[token(one, "Ġtokenizer")] == NO_TOKEN
    assert token(other, "Ġdraft") not in found.outputs


def test_the_draft_model_reads_the_end_of_a_text_that_it_lacks() -> None:
    one = kinds.byte_level(extra=["Ġcaching", "Ġcachq"])
    other = kinds.byte_fallback()
    found = mapped(one, other)
    assert found.inputs[token(one, "Ġcaching")] == token(other, "ing")
    assert found.inputs[token(one, "Ġcachq")] == token(other, "q")


def test_without_any_end_the_draft_model_reads_its_unknown_token_or_the_end_of_a_text() -> None:
    one = kinds.byte_level()
    assert mapped(one, kinds.metaspace()).inputs[token(one, "Ã")] == 0, "<unk>"
    marked = kinds.with_markup(kinds.byte_level(), "<|user|>", special=True)
    without = kinds.byte_level(ENDS)
    assert mapped(marked, without).inputs[token(marked, "<|user|>")] == without.eos_token_id


def test_ids_without_a_token_are_read_and_never_drafted() -> None:
    """Embeddings are often padded to a round size."""
    one = kinds.byte_level()
    found = mapped(one, kinds.byte_fallback(), target_size=1000)
    assert len(found.inputs) == len(found.outputs) == 1000
    assert (found.outputs[len(one) :] == NO_TOKEN).all()
    assert (found.inputs[len(one) :] == 0).all()


def test_tokens_outside_the_embeddings_of_a_model_do_not_map() -> None:
    one = kinds.byte_level()
    for sizes in ({"draft_size": 200}, {"target_size": 200}):
        found = mapped(one, one, **sizes)
        assert found.inputs.max() < sizes.get("draft_size", len(one))
        assert len(found.inputs) == sizes.get("target_size", len(one))
        assert found.num_mapped == 200


# -- special tokens --------------------------------------------------------------------------


def test_the_ends_of_a_text_map_to_each_other_under_any_name() -> None:
    one, other = kinds.byte_level(ENDS), kinds.byte_fallback(OTHER_ENDS)
    found = mapped(one, other)
    assert found.outputs[one.eos_token_id] == other.eos_token_id
    assert found.inputs[one.eos_token_id] == other.eos_token_id
    assert found.inputs[one.bos_token_id] == other.bos_token_id
    assert found.outputs[one.bos_token_id] == NO_TOKEN, "a text has one beginning"


def test_a_name_with_another_meaning_does_not_map() -> None:
    """`<|end|>` ends a text of one, and a turn of the other."""
    one = kinds.byte_level({"eos_token": "<|end|>"})
    other = kinds.byte_level({"eos_token": "</s>"})
    kinds.with_markup(other, "<|end|>", special=True)
    found = mapped(one, other)
    assert found.outputs[one.eos_token_id] == other.eos_token_id
    assert token(other, "<|end|>") not in found.outputs
    assert token(other, "<|end|>") not in found.inputs


def test_other_special_tokens_map_by_name() -> None:
    one, other = kinds.byte_level(), kinds.byte_fallback()
    kinds.with_markup(one, "<|user|>", "<|tool|>", special=True)
    kinds.with_markup(other, "<|user|>", "<|call|>", special=True)
    found = mapped(one, other)
    assert found.outputs[token(one, "<|user|>")] == token(other, "<|user|>")
    assert found.outputs[token(one, "<|tool|>")] == NO_TOKEN


def test_a_special_token_is_not_the_text_of_its_name() -> None:
    one, other = kinds.byte_level(), kinds.byte_level()
    kinds.with_markup(one, "<think>", special=True)
    kinds.with_markup(other, "<think>", special=False)
    assert mapped(one, other).outputs[token(one, "<think>")] == NO_TOKEN
    assert mapped(other, other).outputs[token(other, "<think>")] == token(other, "<think>")


def test_one_token_for_both_ends_maps() -> None:
    """As GPT-2's."""
    both = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    one, other = kinds.byte_level(ENDS), kinds.byte_level(both)
    found = mapped(one, other)
    assert found.inputs[[one.bos_token_id, one.eos_token_id]].tolist() == [other.eos_token_id] * 2
    found = mapped(other, one)
    assert found.inputs[other.eos_token_id] == one.eos_token_id
    assert found.outputs[other.eos_token_id] == one.eos_token_id


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [0, 1])
def test_vocabularies_with_too_little_in_common_are_refused(shared: int) -> None:
    one = kinds.words([f"a{i}" for i in range(30)])
    other = kinds.words([f"a{i}" for i in range(shared)] + [f"b{i}" for i in range(30)])
    with pytest.raises(OptionError, match="use_heterogeneous_vocab cannot help: only") as caught:
        mapped(one, other)
    assert f"{shared + 1} tokens map" in str(caught.value), "and the unknown token"
    assert "at least 10% of the smaller one" in str(caught.value)


def test_the_share_is_that_of_the_smaller_vocabulary() -> None:
    """A small vocabulary that is part of a large one is as good as it can be."""
    small, large = kinds.words("abcdef"), kinds.words([*"abcdef", *(f"x{i}" for i in range(900))])
    for one, other in ((small, large), (large, small)):
        assert mapped(one, other).num_mapped == 7


def test_a_tokenizer_without_its_file_is_refused() -> None:
    slow: Any = SimpleNamespace(name_or_path="a/b")
    with pytest.raises(OptionError, match=r"tokenizer\.json; a/b has none") as caught:
        mapped(kinds.byte_level(), slow, draft_size=10)
    assert caught.value.option == "use_heterogeneous_vocab"


def test_the_log_states_the_share_of_both_vocabularies() -> None:
    found = VocabularyMap(np.zeros(4, np.int64), np.array([0, -1, 2, -1]), 4, 8)
    assert str(found) == (
        "2 tokens map: 50.0% of the target's vocabulary, 25.0% of the draft model's"
    )

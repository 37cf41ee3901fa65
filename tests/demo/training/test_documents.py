"""Chats made from pieces: quoting prompts contain their answer, free ones do not."""

from __future__ import annotations

import random

import numpy as np
from transformers import PreTrainedTokenizerFast

from demo.training.corpus import Piece
from demo.training.documents import can_quote, can_request, copy_chat, free_chat, quoting_chat
from demo.training.packing import IGNORED, Stream, Tokenized, pack


def test_a_quoted_answer_is_in_the_prompt(pieces: list[Piece]) -> None:
    quotable = [piece for piece in pieces if can_quote(piece)]
    rng = random.Random(1)
    for piece in quotable:
        chat = quoting_chat(piece, quotable, rng)
        assert piece.text in chat.prompt[-1]["content"]
        assert chat.answer.endswith(piece.text)
        assert chat.group == piece.group


def test_quoting_chat_shows_the_given_number_of_passages(pieces: list[Piece]) -> None:
    functions = [piece for piece in pieces if piece.kind == "function"]
    chat = quoting_chat(functions[0], functions, random.Random(2), passages=3)
    shown = [p.name for p in functions if f"def {p.name}(" in chat.prompt[-1]["content"]]
    assert len(shown) == 3
    assert functions[0].name in shown


def test_free_chat_names_the_piece_but_does_not_show_it(pieces: list[Piece]) -> None:
    for piece in pieces:
        if can_request(piece):
            chat = free_chat(piece, random.Random(3))
            assert piece.name in chat.prompt[-1]["content"]
            assert piece.text not in chat.prompt[-1]["content"]
            assert chat.answer == piece.text


def test_copy_chat_repeats_a_meaningless_passage() -> None:
    chat = copy_chat(["alpha", "beta", "gamma", "delta"], random.Random(4))
    assert chat.answer[chat.answer.index("def ") :] in chat.prompt[-1]["content"]


def test_chats_are_the_same_for_the_same_seed(pieces: list[Piece]) -> None:
    functions = [piece for piece in pieces if piece.kind == "function"]
    first, again = (quoting_chat(functions[1], functions, random.Random(5)) for _ in range(2))
    assert first == again


def test_packing_cuts_nothing_and_masks_tokens_without_loss() -> None:
    documents = [Tokenized([10 + i] * size) for i, size in enumerate((5, 9, 3, 17, 8))]
    documents.append(Tokenized([90, 91, 92, 93], masked=2))
    rows = pack(documents, 16, random.Random(6))
    assert rows.inputs.shape == rows.labels.shape == (3, 16)
    counts = {i: int((rows.labels == 10 + i).sum()) for i in range(5)}
    # The first token of a document is not predicted; the document of 17 tokens fills a row.
    assert counts == {0: 4, 1: 8, 2: 2, 3: 16, 4: 7}
    assert set(np.unique(rows.labels)) >= {IGNORED, 92, 93}
    assert 91 not in rows.labels


def test_stream_can_start_at_any_chunk(
    pieces: list[Piece], tokenizer: PreTrainedTokenizerFast
) -> None:
    stream = Stream(pieces, tokenizer, seed=1)
    rows = stream.rows(512)
    next(rows)
    second = next(rows)
    assert np.array_equal(second.inputs, next(stream.rows(512, start=1)).inputs)


def test_every_document_begins_with_bos_and_ends_with_eos(
    pieces: list[Piece], tokenizer: PreTrainedTokenizerFast
) -> None:
    documents = Stream(pieces, tokenizer, seed=1).documents(0)
    assert {(doc.ids[0], doc.ids[-1]) for doc in documents} == {(1, 2)}


def test_focused_chunks_have_no_fragments_and_more_quotes(
    pieces: list[Piece], tokenizer: PreTrainedTokenizerFast
) -> None:
    fragment = Piece("code", "m:f", "", "", "", "", "zzz = qqq(" * 9)
    stream = Stream([*pieces, *[fragment] * 8], tokenizer, seed=1)
    texts = [
        [tokenizer.decode(doc.ids) for doc in stream.documents(0, focused=focused)]
        for focused in (False, True)
    ]
    assert [any("zzz = qqq" in text for text in part) for part in texts] == [True, False]
    everything, focused = ([text for text in part if "<|user|>" in text] for part in texts)
    assert len(focused) > len(everything)

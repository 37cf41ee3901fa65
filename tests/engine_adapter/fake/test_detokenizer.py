"""Stop strings within one token."""

import pytest

from demo import model_path
from engine_adapter.fake.detokenizer import Detokenizer
from engine_adapter.fake.vocabulary import load_vocabulary
from engine_adapter.seam.types import SamplingOptions


@pytest.mark.parametrize("stop", [("rn", "et"), ("et", "rn")])
def test_the_stop_string_that_ends_first_matches(stop: tuple[str, str]) -> None:
    tokenizer = load_vocabulary(str(model_path("target"))).tokenizer
    (token,) = tokenizer.encode("return", add_special_tokens=False).ids
    detokenizer = Detokenizer(tokenizer, (token,), SamplingOptions(stop=stop))
    assert detokenizer.add(token, may_stop=True) == "et"
    assert detokenizer.take(finished=True) == "r"

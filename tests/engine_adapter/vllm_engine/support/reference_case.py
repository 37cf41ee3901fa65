"""An engine with every kind of proposer, and a reference that tells how wrong a text is.

The request's predicted output is the target's own text with mistakes, so drafts are accepted in
part, at every length, and each is followed by steps without drafts.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import model_path
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.proposers.eagle_heads import eagle
from tests.engine_adapter.proposers.heads import medusa
from tests.engine_adapter.vllm_engine.support.live import Prompt, Stock
from tests.engine_adapter.vllm_engine.support.plain_model import PlainModel
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)

LENGTH = 60
SOME = (0, 3, 8, 9, 10, 12, 16, 17, 20, 16)
"""Which prompts; two are equal, and most are read in several chunks."""
PREDICTION = SpecMethod("prediction", 5)
METHODS = (
    *(SpecMethod("prediction", k) for k in (1, 3, 5)),
    SpecMethod("ngram", 5),
    SpecMethod("suffix", 5),
    SpecMethod("draft", 4),
    SpecMethod("medusa", 4),
    SpecMethod("eagle", 3),
    PLAIN,
)


def proposers_for(target: str, folder: Path) -> list[dict[str, Any]]:
    """Lookups, a draft model of attention, random heads and predictions: those of `METHODS`."""
    config = json.loads((Path(target) / "config.json").read_text())
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    layer = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
    for name in ("hidden_size", "vocab_size", "intermediate_size", "max_position_embeddings"):
        layer[name] = config[name]
    layer |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    return [
        {"name": "ngram"},
        {"name": "suffix", "num_speculative_tokens": 5},
        {
            "name": "draft",
            "method": "draft_model",
            "model": str(model_path("draft")),
            "num_speculative_tokens": 4,
        },
        {
            "name": "medusa",
            "model": medusa(hidden=hidden, vocabulary=vocabulary).write(folder / "medusa"),
            "num_speculative_tokens": 4,
        },
        {"name": "eagle", "model": eagle(layer).write(folder / "eagle")},
        {"name": "prediction", "num_speculative_tokens": 5},
    ]


@dataclass(frozen=True)
class Case:
    """The engine and the reference.

    Attributes:
        methods: of the requests.
    """

    engine: RecordedEngine
    stock: Stock | PlainModel
    methods: Sequence[SpecMethod] = METHODS

    def requests(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[Prompt],
        rng: random.Random,
        *,
        pinned: bool,
    ) -> list[RecordedRequest]:
        """A request for each prompt; `pinned` ones have a random method."""
        return [
            RecordedRequest(
                prompt,
                LENGTH,
                rng.choice(self.methods) if pinned else PLAIN,
                at=rng.randrange(12),
                prediction=with_mistakes(text, rng),
            )
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    def random_switches(self, rng: random.Random) -> dict[int, SpecMethod]:
        """All requests get a random method before every second step."""
        return {step: rng.choice(self.methods) for step in range(0, 600, 2)}

    async def largest_gap(self, prompts: Sequence[Prompt], got: RecordedRun) -> float:
        """The most that a token of the prompts' texts is less likely than the likeliest.

        In log probability. Requests behind those of the prompts do not count.
        """
        return max(
            [
                await self.stock.gap(prompt, output)
                for prompt, output in zip(prompts, got.outputs, strict=False)
            ]
        )


def with_mistakes(text: Sequence[int], rng: random.Random, share: float = 0.15) -> Prompt:
    """The text with other tokens at a share of its positions."""
    return tuple(rng.randrange(3, 2000) if rng.random() < share else token for token in text)

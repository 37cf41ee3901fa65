"""A row of the table in docs/lab/architectures.md, and the model that the tests make of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.engine_adapter.vllm_engine.support.window_models import SMALL

ABSENT = object()
"""A field of `BASE` that a configuration refuses."""

BASE: Mapping[str, Any] = {**SMALL, "num_hidden_layers": 2, "tie_word_embeddings": False}
"""The fields of every configuration. A type of model ignores those that it does not have."""


@dataclass(frozen=True)
class Architecture:
    """A row of the table.

    Attributes:
        name: of the row.
        model_type: of the configuration; also the class of transformers that makes the model.
        fields: of the configuration that differ from `BASE`.
        no_eagle: why vLLM cannot run an EAGLE head for this model; empty if it can.
        refused: why it is not served; empty if it is.
        recurrent: whether it has layers of Mamba 2. Then it cannot draft, and has no prefix cache.
    """

    name: str
    model_type: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    no_eagle: str = ""
    refused: str = ""
    recurrent: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The fields of its configuration."""
        return {key: value for key, value in {**BASE, **self.fields}.items() if value is not ABSENT}

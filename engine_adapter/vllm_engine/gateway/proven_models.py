"""The architectures that the table in docs/models.md has, with every proposer exact."""

PROVEN: frozenset[str] = frozenset(
    {
        "LlamaForCausalLM",
    }
)
"""Their names in `config.json`. A test compares them with the results of the checks."""


def is_proven(architectures: object) -> bool:
    """Whether a configuration's `architectures` name one of them."""
    return isinstance(architectures, list) and not PROVEN.isdisjoint(architectures)

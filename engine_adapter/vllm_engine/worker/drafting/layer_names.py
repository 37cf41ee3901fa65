"""The names of draft models' and heads' layers in vLLM's registry, one for each layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine_adapter.proposers.contract import ProposerSpec


def layer_prefix(spec: ProposerSpec) -> str:
    """The prefix of a proposer's layer names.

    It has no dot, since vLLM reads the numbers between dots.
    """
    return f"draft:{spec.name.replace('.', ':')}"


@contextmanager
def layers_of_one_model(layers: dict[str, Any], prefix: str) -> Iterator[None]:
    """Within it, a model registers its layers; afterwards each has the prefix in its name.

    The layers of experts in vLLM's Transformers backend have the same names in every model
    (`TransformersMoEForCausalLM`), and vLLM refuses a name that it has.

    Args:
        layers: vLLM's registry, name -> layer. Within it, it has no other layers.
        prefix: of the model's layers.
    """
    registered = dict(layers)
    layers.clear()
    try:
        yield
        for name, layer in layers.items():
            if not name.startswith(prefix):
                layer.layer_name = f"{prefix}.{name}"
                registered[layer.layer_name] = layer
            else:
                registered[name] = layer
    finally:
        layers.clear()
        layers.update(registered)

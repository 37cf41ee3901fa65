"""The architectures that the table in docs/models.md has, with every proposer exact."""

PROVEN: frozenset[str] = frozenset(
    {
        "Cohere2ForCausalLM",
        "Ernie4_5ForCausalLM",
        "Exaone4ForCausalLM",
        "FalconForCausalLM",
        "GPT2LMHeadModel",
        "GPTJForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "LlamaForCausalLM",
        "Ministral3ForCausalLM",
        "MinistralForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "OPTForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "Phi3ForCausalLM",
        "PhiForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "SmolLM3ForCausalLM",
        "Starcoder2ForCausalLM",
    }
)
"""Their names in `config.json`. A test compares them with the results of the checks."""


def is_proven(architectures: object) -> bool:
    """Whether a configuration's `architectures` name one of them."""
    return isinstance(architectures, list) and not PROVEN.isdisjoint(architectures)

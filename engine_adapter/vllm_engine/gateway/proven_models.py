"""The architectures that the table in docs/models.md has, with every proposer exact."""

PROVEN: frozenset[str] = frozenset(
    {
        "ArceeForCausalLM",
        "BloomForCausalLM",
        "Cohere2ForCausalLM",
        "Cohere2MoeForCausalLM",
        "CohereForCausalLM",
        "CwmForCausalLM",
        "Ernie4_5ForCausalLM",
        "Exaone4ForCausalLM",
        "FalconForCausalLM",
        "GPT2LMHeadModel",
        "GPTJForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "GlmForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "GraniteSWAForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "HyperCLOVAXForCausalLM",
        "Jais2ForCausalLM",
        "LlamaForCausalLM",
        "Ministral3ForCausalLM",
        "MinistralForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "NemotronForCausalLM",
        "OPTForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "OlmoForCausalLM",
        "OlmoeForCausalLM",
        "Phi3ForCausalLM",
        "PhiForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "SeedOssForCausalLM",
        "SmolLM3ForCausalLM",
        "StableLmForCausalLM",
        "Starcoder2ForCausalLM",
        "VaultGemmaForCausalLM",
    }
)
"""Their names in `config.json`. A test compares them with the results of the checks."""


def is_proven(architectures: object) -> bool:
    """Whether a configuration's `architectures` name one of them."""
    return isinstance(architectures, list) and not PROVEN.isdisjoint(architectures)

"""The parsers that are found from the chat templates of published models.

The templates are those that llama.cpp tests its own parsers with. They are read from the source
archive of a package, and none of them is kept here.
"""

import re
import tarfile
from pathlib import PurePath

import pytest

from tests.client_tools import source_archive
from tests.engine_adapter.vllm_engine.gateway.test_parser_search import search

pytestmark = [pytest.mark.needs_vllm, pytest.mark.prove]

PACKAGE = "llama-cpp-python==0.3.36"
ARCHITECTURES = {
    "Laguna": "LagunaForCausalLM",
    "NVIDIA-Nemotron-3": "NemotronHForCausalLM",
    "StepFun": "Step3p5ForCausalLM",
    "granite": "GraniteForCausalLM",
    "ling-3": "BailingMoeV3ForCausalLM",
    "muse-glimmer": "MuseGlimmerForConditionalGeneration",
}
MARK = re.compile(r"<\|?/?[\w:.｜▁ |]+[|>｜]+>?|\[/?[A-Z_]+\]|\]<\]minimax\[>\[")  # noqa: RUF001
"""What the models' tokenizers have as tokens, told from a template."""

OTHER_TOKENS = ("<|python_tag|>", "<|tool_call_start|>", "<|tool_call_end|>")
"""Tokens that templates do not have as they are."""

CHOICES: dict[str, tuple[str | None, str | None]] = {
    "Apertus-8B-Instruct": ("apertus", None),
    "Bielik-11B-v3.0-Instruct": ("hermes", "deepseek_v3"),
    "ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "GLM-4.6": ("glm45", "glm45"),
    "GLM-4.7-Flash": ("glm47", "glm47"),
    "GigaChat3-10B-A1.8B": ("gigachat3", None),
    "GigaChat3.1-10B-A1.8B": ("gigachat3", None),
    "HuggingFaceTB-SmolLM3-3B": (None, "qwen3"),
    "Kimi-K3": ("kimi_k3", "kimi_k3"),
    "LFM2-8B-A1B": ("lfm2", None),
    "LFM2.5-8B-A1B": ("lfm2", None),
    "MiMo-VL": ("hermes", None),
    "MiniMax-M2": ("minimax_m2", "minimax_m2"),
    "MiniMax-M3": ("minimax_m3", None),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen3_coder", "nemotron_v3"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "qwen3"),
    "Qwen3-Coder": ("qwen3_coder", None),
    "Qwen3.5-4B": ("qwen3_coder", "qwen3"),
    "Reka-Edge": ("hermes", "deepseek_v3"),
    "StepFun3.5-Flash": ("step3p5", "step3p5"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (None, "deepseek_r1"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", "deepseek_r1"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v32", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V4": ("deepseek_v4", "deepseek_v4"),
    "google-gemma-2-2b-it": (None, None),
    "google-gemma-4-31B-it": ("gemma4", "gemma4"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", None),
    "ibm-granite-granite-4.0": ("granite4", None),
    "inclusionai-ling-3.0-flash": ("ling3", "ling3"),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3_json", None),
    "microsoft-Phi-3.5-mini-instruct": (None, None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", None),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "moonshotai-Kimi-K2": ("kimi_k2", None),
    "openai-gpt-oss-120b": ("openai", "openai_gptoss"),
    "openbmb-MiniCPM5-1B": ("minicpm5", "deepseek_v3"),
    "poolside-Laguna-XS.2": ("poolside_v1", "poolside_v1"),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", None),
    # Their forms of calls have no parser in vLLM.
    "Apriel-1.6-15b-Thinker-fixed": (None, None),
    "MiniMax-M1": (None, None),
    "NVIDIA-Nemotron-Nano-v2": (None, "deepseek_r1"),
    "fireworks-ai-llama-3-firefunction-v2": (None, None),
    "meetkai-functionary-medium-v3.1": (None, None),
    "upstage-Solar-Open-100B": (None, None),
}
"""Template -> the parsers of calls and of reasoning."""


@pytest.fixture(scope="module")
def published(pytestconfig: pytest.Config) -> dict[str, str]:
    """The templates by their names."""
    templates = {}
    with tarfile.open(source_archive(pytestconfig, PACKAGE)) as archive:
        for member in archive:
            path = PurePath(member.name)
            if path.suffix == ".jinja" and path.parent.name == "templates":
                file = archive.extractfile(member)
                assert file is not None
                templates[path.stem] = file.read().decode("utf-8")
    return templates


@pytest.mark.parametrize("name", CHOICES)
def test_the_parsers_of_a_published_template(
    monkeypatch: pytest.MonkeyPatch, published: dict[str, str], name: str
) -> None:
    architecture = next((a for part, a in ARCHITECTURES.items() if part in name), "Any")
    marks = {mark for mark in MARK.findall(published[name]) if not re.search("[=+]", mark)}
    calls, reasoning = search(
        monkeypatch,
        published[name],
        tokens=tuple(sorted({*marks, *OTHER_TOKENS}, key=len, reverse=True)),
        architecture=architecture,
    )
    assert (calls.name, reasoning.name) == CHOICES[name], (calls.reason, reasoning.reason)

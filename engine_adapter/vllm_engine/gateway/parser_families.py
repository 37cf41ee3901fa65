"""The families of models that vLLM has parsers for, and how their chat templates tell them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

Marks = tuple[str, str]
"""The texts before and after a model's reasoning."""

THINK: Marks = ("<think>", "</think>")

EXAMPLE_NAME, EXAMPLE_ARGUMENTS = "get_weather", {"city": "Bonn", "days": 3}
"""The call that templates are asked to write."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose calls, and whose reasoning, have the same form.

    Attributes:
        name: as messages name it.
        call: matches a call as the chat template writes it; empty: any template.
        tool_call_parser: vLLM's parser of the calls.
        reasoning_parser: vLLM's parser of the reasoning, where such a model reasons.
        marks: of the reasoning.
        tool_marks: what a template has that tells the model of such calls in words and writes none.
        example: a call of `EXAMPLE_NAME` with `EXAMPLE_ARGUMENTS`, for templates that write none.
        architectures: how the architecture's name in `config.json` begins; empty: any.
    """

    name: str
    call: str = ""
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    marks: Marks = THINK
    tool_marks: str = ""
    example: str = ""
    architectures: tuple[str, ...] = ()

    def fits(self, architectures: Iterable[str]) -> bool:
        """Whether a model of these architectures can be of this family."""
        return not self.architectures or any(
            name.startswith(self.architectures) for name in architectures
        )

    def call_in(self, call: str, source: str) -> str:
        """A call of the family's form for this template; empty if the template has another one.

        Args:
            call: as the template writes it, if it does.
            source: the template itself.
        """
        if call:
            return call if self.call and re.search(self.call, call) else ""
        return self.example if self.tool_marks and self.tool_marks in source else ""


_JSON_CALL = r'<tool_call>\s*\{"name":.*"arguments":'
_XML_CALL = r"<tool_call>\s*<function=[^>]+>\s*<parameter="
_KEYS_CALL = r"<tool_call>[^<]*<arg_key>"
_ATEM_CALL = r"<atem:invoke name="
_CHANNEL: Marks = (
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
)
_COHERE: Marks = ("<|START_THINKING|>", "<|END_THINKING|>")
_GRANITE: Marks = ("Here is my thought process:", "Here is my response:")
_PLAMO: Marks = ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>")

FAMILIES: tuple[Family, ...] = (
    Family("gpt-oss", r"<\|channel\|>commentary", "openai", "openai_gptoss", _CHANNEL),
    Family("DeepSeek V3.2", "DSML.function_calls>", "deepseek_v32", "deepseek_v3"),
    Family("DeepSeek V4.1", "DSML. calls>", "deepseek_v41", "deepseek_v41"),
    Family("DeepSeek V4", "DSML.tool_calls>", "deepseek_v4", "deepseek_v4"),
    Family("DeepSeek V3 and R1", r"tool▁sep.[^{]*\n```json", "deepseek_v3", "deepseek_r1"),
    Family("DeepSeek V3.1", r"tool▁sep.>\s*\{", "deepseek_v31", "deepseek_v3"),
    Family(
        "Kimi K3",
        r"<\|open\|>call tool=",
        "kimi_k3",
        "kimi_k3",
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    Family("Kimi K2", r"<\|tool_call_argument_begin\|>", "kimi_k2", "kimi_k2"),
    Family("Laguna", _KEYS_CALL, "poolside_v1", "poolside_v1", architectures=("Laguna",)),
    Family("Ling 3", _KEYS_CALL, "ling3", "ling3", architectures=("BailingMoeV3",)),
    Family(
        "Hunyuan 4", r"<tool_call[^>]*>[^<]*<arg_key", "hy_v4", "hy_v4", architectures=("HYV4",)
    ),
    Family("GLM 4.5 and 4.6", r"<tool_call>[^<]*\n<arg_key>", "glm45", "glm45"),
    Family("GLM 4.7", r"<tool_call>[^<\n]*<arg_key>", "glm47", "glm47"),
    Family(
        "Hunyuan 3",
        r"<tool_sep:opensource>",
        "hy_v3",
        "hy_v3",
        ("<think:opensource>", "</think:opensource>"),
    ),
    Family("Hunyuan 3", r"<tool_sep>", "hy_v3", "hy_v3"),
    Family(
        "Hunyuan A13B",
        r"<tool_calls>\s*\[",
        "hunyuan_a13b",
        "hunyuan_a13b",
        architectures=("HunYuan",),
    ),
    Family(
        "K2 Horizon",
        r"<ifm\|tool_call>",
        "k2_horizon",
        "k2_horizon",
        ("<ifm|think>", "</ifm|think>"),
    ),
    Family(
        "MiniMax M3",
        r"\]<\]minimax\[>\[<tool_call>",
        "minimax_m3",
        "minimax_m3",
        ("<mm:think>", "</mm:think>"),
    ),
    Family("MiniMax M2", "<minimax:tool_call>", "minimax_m2", "minimax_m2"),
    Family(
        "Seed-OSS",
        "<seed:tool_call>",
        "seed_oss",
        "seed_oss",
        ("<seed:think>", "</seed:think>"),
    ),
    Family("Step 3", "<steptml:invoke", "step3", "step3"),
    Family("Step 5", _XML_CALL, "step5", "step5", architectures=("Step5",)),
    Family("Step 3.5", _XML_CALL, "step3p5", "step3p5", architectures=("Step3p",)),
    Family("MiMo", r"<parameter=\w+>[^\n]", "mimo", "mimo", architectures=("MiMo",)),
    Family("Nemotron 3", _XML_CALL, "qwen3_coder", "nemotron_v3", architectures=("NemotronH",)),
    Family(
        "Granite 4.2",
        _XML_CALL,
        "qwen3_coder",
        "granite_thinking_parser",
        architectures=("Granite",),
    ),
    Family("Qwen3-Coder and Qwen 3.5", _XML_CALL, "qwen3_coder", "qwen3"),
    Family("MiniCPM 5", r'<function name="[^"]+"><param name=', "minicpm5", "qwen3"),
    Family("dots", "<dots_function_call>", "dots"),
    Family(
        "Muse Glimmer",
        _ATEM_CALL,
        "muse_glimmer",
        "muse_glimmer",
        ("to=self<|message|>", "<|eom|>"),
        architectures=("MuseGlimmer",),
    ),
    Family("Muse", _ATEM_CALL, "muse", "muse", ("to=self<|message|>", "<|eom|>")),
    Family(
        "Inkling",
        r"<\|content_invoke_tool_json\|>",
        "inkling",
        "inkling",
        ("<|content_thinking|>", "<|end_message|>"),
    ),
    Family("Beam", "", "beam", "beam", architectures=("Beam",)),
    Family("Gemma 4", r"<\|tool_call>call:", "gemma4", "gemma4", ("<|channel>", "<channel|>")),
    Family("FunctionGemma", "<start_function_call>call:", "functiongemma"),
    Family("Apertus", r"<\|tools_prefix\|>", "apertus"),
    Family(
        "Cohere Command 4",
        r"<\|START_ACTION\|>",
        "cohere_command4",
        "cohere_command4",
        _COHERE,
        architectures=("Cohere2Moe", "CohereCompass"),
    ),
    Family(
        "Cohere Command 3", r"<\|START_ACTION\|>", "cohere_command3", "cohere_command3", _COHERE
    ),
    Family("GigaChat 3", r"function call<\|role_sep\|>|<\|function_call\|>\{", "gigachat3"),
    Family(
        "LFM 2",
        r"<\|tool_call_start\|>\[",
        "lfm2",
        tool_marks="<|tool_list_start|>",
        example='<|tool_call_start|>[get_weather(city="Bonn", days=3)]<|tool_call_end|>',
    ),
    Family("Olmo 3", r"<function_calls>\s*\w+\(", "olmo3", "olmo3"),
    Family("Llama 4", r"<\|python_start\|>\[", "llama4_pythonic"),
    Family("PLaMo 3", r"<\|plamo:begin_tool_request", "plamo3", "plamo3", _PLAMO),
    Family("Jamba", r"<tool_calls>\s*\[", "jamba", architectures=("Jamba",)),
    Family("InternLM 2", r"<\|action_start\|><\|plugin\|>", "internlm"),
    Family("Granite 20B function calling", "<function_call>", "granite-20b-fc"),
    Family(
        "Granite 3",
        r"<\|tool_call\|>\s*\[",
        "granite",
        "granite",
        _GRANITE,
        tool_marks="<|tool_call|> followed by a JSON list",
        example='<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Bonn", "days": 3}}]',
    ),
    Family("Phi-4 mini", r"functools\[", "phi4_mini_json"),
    Family("Mistral", r"\[TOOL_CALLS\]", "mistral", "mistral", ("[THINK]", "[/THINK]")),
    Family("LongCat", "<longcat_tool_call>", "longcat"),
    Family("ERNIE 4.5", _JSON_CALL, "ernie45", "ernie45", architectures=("Ernie4_5",)),
    Family("Granite 4", _JSON_CALL, "granite4", architectures=("Granite",)),
    Family("Hermes, Qwen 2.5 and Qwen 3", _JSON_CALL, "hermes", "qwen3"),
    Family("xLAM", r'^\s*\[\{"name":.*"arguments":', "xlam"),
    Family("Llama 4", r'^\s*\{"name":.*"parameters":', "llama4_json", architectures=("Llama4",)),
    Family("Llama 3", r'^\s*\{"name":.*"parameters":', "llama3_json"),
    Family("pythonic calls", r"^\s*\[\w+\(", "pythonic"),
    Family("Olmo 3", reasoning_parser="olmo3", architectures=("Olmo3",)),
    Family("models that always think", reasoning_parser="deepseek_r1"),
    Family("models that can think", reasoning_parser="qwen3"),
    Family("models that think when asked", reasoning_parser="deepseek_v3"),
)
"""Of two families that fit, the first one counts."""

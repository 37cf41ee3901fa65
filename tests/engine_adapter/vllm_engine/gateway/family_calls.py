"""A call as the models of each family write it, in words of ours: for templates of tests."""

from dataclasses import dataclass

ARGUMENTS = '{"city": "Bonn", "days": 3}'
_NAMED = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
_PYTHON = 'get_weather(city="Bonn", days=3)'
_XML = """<function=get_weather>
<parameter=city>
Bonn
</parameter>
<parameter=days>
3
</parameter>
</function>
"""
_INVOKE = """<{0}invoke name="get_weather">
<{0}parameter name="city">Bonn</{0}parameter>
<{0}parameter name="days">3</{0}parameter>
</{0}invoke>
"""
_DSML = """<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Bonn</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
"""  # noqa: RUF001
_KEYS = """<arg_key>city</arg_key>{0}<arg_value>Bonn</arg_value>{0}\
<arg_key>days</arg_key>{0}<arg_value>3</arg_value>"""
_MINIMAX = "]<]minimax[>["
_PLAMO_BEGIN, _PLAMO_END = "<|plamo:begin_tool_{}:plamo|>", "<|plamo:end_tool_{}:plamo|>"


@dataclass(frozen=True, slots=True)
class FamilyCall:
    """A call of `get_weather` with `ARGUMENTS`.

    Attributes:
        parser: vLLM's.
        text: the call.
        architecture: of the model; empty: of any.
    """

    parser: str
    text: str
    architecture: str = ""

    def __str__(self) -> str:
        return self.parser


_HARMONY = "<|channel|>commentary to=functions.get_weather json<|message|>"

CALLS = (
    FamilyCall("hermes", f"<tool_call>\n{_NAMED}\n</tool_call>"),
    FamilyCall("openai", f"{_HARMONY}{ARGUMENTS}<|call|>"),
    FamilyCall("granite4", f"<tool_call>\n{_NAMED}\n</tool_call>", "GraniteMoeHybridForCausalLM"),
    FamilyCall("ernie45", f"<tool_call>\n{_NAMED}\n</tool_call>", "Ernie4_5_MoeForCausalLM"),
    FamilyCall("longcat", f"<longcat_tool_call>\n{_NAMED}\n</longcat_tool_call>"),
    FamilyCall("llama3_json", f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}'),
    FamilyCall(
        "llama4_json",
        f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}',
        "Llama4ForConditionalGeneration",
    ),
    FamilyCall("mistral", f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}"),
    FamilyCall(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    FamilyCall(
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Bonn<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    FamilyCall(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"  # noqa: RUF001
        f"```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    FamilyCall(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"  # noqa: RUF001
        f"{ARGUMENTS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    FamilyCall("deepseek_v32", f"<｜DSML｜function_calls>\n{_DSML}</｜DSML｜function_calls>"),  # noqa: RUF001
    FamilyCall("deepseek_v4", f"<｜DSML｜tool_calls>\n{_DSML}</｜DSML｜tool_calls>"),  # noqa: RUF001
    FamilyCall(
        "deepseek_v41",
        f"<｜DSML｜tool_calls>\n{_DSML}</｜DSML｜tool_calls>".replace("DSML｜", "DSML｜ ").replace(  # noqa: RUF001
            " tool_calls", " calls"
        ),
    ),
    FamilyCall(
        "internlm",
        f'<|action_start|><|plugin|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}'
        "<|action_end|>",
    ),
    FamilyCall("jamba", f"<tool_calls>[\n{_NAMED}\n]</tool_calls>", "JambaForCausalLM"),
    FamilyCall("hunyuan_a13b", f"<tool_calls>[{_NAMED}]</tool_calls>", "HunYuanMoEV1ForCausalLM"),
    FamilyCall("granite", f"<|tool_call|>[{_NAMED}]"),
    FamilyCall("granite-20b-fc", f"<function_call> {_NAMED}"),
    FamilyCall("phi4_mini_json", f"functools[{_NAMED}]"),
    FamilyCall("xlam", f"[{_NAMED}]"),
    FamilyCall("gigachat3", f"<|message_sep|>\n\nfunction call<|role_sep|>\n{_NAMED}"),
    FamilyCall("apertus", f'<|tools_prefix|>[{{"get_weather": {ARGUMENTS}}}]<|tools_suffix|>'),
    FamilyCall("pythonic", f"[{_PYTHON}]"),
    FamilyCall("llama4_pythonic", f"<|python_start|>[{_PYTHON}]<|python_end|>"),
    FamilyCall("olmo3", f"<function_calls>{_PYTHON}</function_calls>"),
    FamilyCall("lfm2", f"<|tool_call_start|>[{_PYTHON}]<|tool_call_end|>"),
    FamilyCall("gemma4", '<|tool_call>call:get_weather{city:<|"|>Bonn<|"|>,days:3}<tool_call|>'),
    FamilyCall("qwen3_coder", f"<tool_call>\n{_XML}</tool_call>"),
    FamilyCall("step3p5", f"<tool_call>\n{_XML}</tool_call>", "Step3p5ForCausalLM"),
    FamilyCall("step5", f"<tool_call>\n{_XML}</tool_call>", "Step5ForCausalLM"),
    FamilyCall(
        "mimo",
        "<tool_call>\n<function=get_weather>\n<parameter=city>Bonn</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</tool_call>",
        "MiMoV2FlashForCausalLM",
    ),
    FamilyCall("seed_oss", f"<seed:tool_call>\n{_XML}</seed:tool_call>"),
    FamilyCall("minimax_m2", f"<minimax:tool_call>\n{_INVOKE.format('')}</minimax:tool_call>"),
    FamilyCall(
        "minimax_m3",
        f'{_MINIMAX}<tool_call>\n{_MINIMAX}<invoke name="get_weather">{_MINIMAX}<city>Bonn'
        f"{_MINIMAX}</city>{_MINIMAX}<days>3{_MINIMAX}</days>{_MINIMAX}</invoke>\n"
        f"{_MINIMAX}</tool_call>",
    ),
    FamilyCall("glm45", f"<tool_call>get_weather\n{_KEYS.format(chr(10))}\n</tool_call>"),
    FamilyCall("glm47", f"<tool_call>get_weather{_KEYS.format('')}</tool_call>"),
    FamilyCall(
        "poolside_v1", f"<tool_call>get_weather{_KEYS.format('')}</tool_call>", "LagunaForCausalLM"
    ),
    FamilyCall(
        "ling3",
        f"<tool_call>get_weather\n{_KEYS.format(chr(10))}\n</tool_call>",
        "BailingMoeV3ForCausalLM",
    ),
    FamilyCall(
        "hy_v3",
        "<tool_calls>\n<tool_call>get_weather<tool_sep>\n"
        f"{_KEYS.format(chr(10))}\n</tool_call>\n</tool_calls>",
    ),
    FamilyCall(
        "hy_v4",
        f"<tool_calls>\n<tool_call>get_weather{_KEYS.format('')}</tool_call>\n</tool_calls>",
        "HYV4ForCausalLM",
    ),
    FamilyCall(
        "k2_horizon",
        "<ifm|tool_calls><ifm|tool_call>get_weather"
        "<ifm|arg_key>city</ifm|arg_key><ifm|arg_value>Bonn</ifm|arg_value>"
        "<ifm|arg_key>days</ifm|arg_key><ifm|arg_value>3</ifm|arg_value>"
        "</ifm|tool_call></ifm|tool_calls>",
    ),
    FamilyCall("dots", f"<dots_function_call>\n{_INVOKE.format('')}</dots_function_call>"),
    FamilyCall(
        "step3",
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"  # noqa: RUF001
        f"{_INVOKE.format('steptml:')}<｜tool_call_end｜><｜tool_calls_end｜>",  # noqa: RUF001
    ),
    FamilyCall(
        "minicpm5",
        '<function name="get_weather"><param name="city">Bonn</param>'
        '<param name="days">3</param></function>',
    ),
    FamilyCall(
        "muse",
        f"<|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
        f"{_INVOKE.format('atem:')}</atem:function_calls>",
    ),
    FamilyCall(
        "muse_glimmer",
        f"<|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
        f"{_INVOKE.format('atem:')}</atem:function_calls>",
        "MuseGlimmerForConditionalGeneration",
    ),
    FamilyCall(
        "plamo3",
        _PLAMO_BEGIN.format("requests")
        + _PLAMO_BEGIN.format("request")
        + _PLAMO_BEGIN.format("name")
        + "get_weather"
        + _PLAMO_END.format("name")
        + _PLAMO_BEGIN.format("arguments")
        + f"<|plamo:constrain|>json<|plamo:msg|>{ARGUMENTS}"
        + _PLAMO_END.format("arguments")
        + _PLAMO_END.format("request")
        + _PLAMO_END.format("requests"),
    ),
    FamilyCall(
        "inkling",
        "<|message_model|><|content_invoke_tool_json|>"
        f'{{"name": "get_weather", "args": {ARGUMENTS}}}<|end_message|>',
    ),
)

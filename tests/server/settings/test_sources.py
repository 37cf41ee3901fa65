"""Flags override variables, which override YAML; an error names the setting as written."""

from pathlib import Path

import pytest

from server.settings.sources import forget_keys, load_settings, unknown_variables
from server.settings.types import SettingsError, digest_of


def error_of(*argv: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(argv, environ)
    (line,) = caught.value.lines
    return line


def config(folder: Path, text: str) -> str:
    file = folder / "specgate.yaml"
    file.write_text(text, "utf-8")
    return str(file)


def test_flags_win_over_variables_and_those_over_the_file(tmp_path: Path) -> None:
    file = config(tmp_path, "host: 10.0.0.1\nport: 1\nlog-level: error\nmodel: org/file\n")
    settings = load_settings(
        ["--config", file, "--host", "10.0.0.3"],
        {"SPECGATE_HOST": "10.0.0.2", "SPECGATE_PORT": "2"},
    )
    assert (settings.host, settings.port, settings.log_level) == ("10.0.0.3", 2, "error")
    assert settings.model == "org/file"


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = config(tmp_path, "port: 7")
    assert load_settings([], {"SPECGATE_CONFIG": file}).port == 7


def test_an_empty_variable_and_an_empty_file_set_nothing(tmp_path: Path) -> None:
    file = config(tmp_path, "")
    assert load_settings(["--config", file], {"SPECGATE_PORT": ""}).port == 8000


@pytest.mark.parametrize("argv", [["org/m", "--seed", "1"], ["--seed", "1", "org/m"]])
def test_the_model_can_be_before_or_after_the_flags(argv: list[str]) -> None:
    settings = load_settings(argv, {})
    assert (settings.model, settings.seed) == ("org/m", 1)


def test_repeated_flags_are_collected() -> None:
    settings = load_settings(
        [
            "org/m",
            *("--proposer", '{"name": "ngram"}'),
            *("--proposer", '{"name": "suffix"}'),
            *("--api-key", "a"),
            *("--api-key", "b"),
        ],
        {"SPECGATE_ADMIN_KEY": "c,d"},
    )
    assert settings.proposer_names == ("ngram", "suffix")
    assert len(settings.api_key) == len(settings.admin_key) == 2


def test_lora_modules_come_in_vllms_forms(tmp_path: Path) -> None:
    given = ["a=x", "b=y/z=1", '{"name": "c", "path": "p"}']
    known = {"a": "x", "b": "y/z=1", "c": "p"}
    argv = ["org/m", "--enable-lora", "--lora-modules"]
    assert load_settings([*argv, *given], {}).lora_modules == known
    repeated = [*argv, given[0], "--lora-modules", *given[1:]]
    assert load_settings(repeated, {}).lora_modules == known
    environ = {"SPECGATE_MODEL": "org/m", "SPECGATE_ENABLE_LORA": "true"}
    for text in ("a=x,d=q", '[{"name": "a", "path": "x"}, "d=q"]', '{"a": "x", "d": "q"}'):
        settings = load_settings([], environ | {"SPECGATE_LORA_MODULES": text})
        assert settings.lora_modules == {"a": "x", "d": "q"}
    text = "model: org/m\nenable_lora: true\nlora_modules:\n  a: x\n"
    settings = load_settings(["--config", config(tmp_path, text)], {})
    assert settings.engine_config().lora_modules == {"a": "x"}
    assert settings.engine_config().arguments["enable_lora"] is True


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (["a"], "must be name=path, got 'a'"),
        (["=x"], "must be name=path"),
        (["a=x", "a=y"], "'a' is given twice"),
        (['{"name": "a"}'], 'must be {"name": ..., "path": ...}'),
        (["org/m=x"], "'org/m' is the name of the model itself"),
    ],
)
def test_an_invalid_lora_module_is_refused(modules: list[str], reason: str) -> None:
    said = error_of("org/m", "--enable-lora", "--lora-modules", *modules)
    assert said.startswith(f"--lora-modules: {reason}")


def test_lora_modules_need_lora() -> None:
    assert error_of("org/m", "--lora-modules", "a=x") == "--lora-modules: needs --enable-lora"


def test_proposers_may_be_mappings_in_the_file_and_json_in_a_variable(tmp_path: Path) -> None:
    file = config(tmp_path, "model: org/m\nproposer:\n- name: ngram\n  num_speculative_tokens: 3\n")
    assert load_settings(["--config", file], {}).proposer[0].num_speculative_tokens == 3
    environ = {"SPECGATE_MODEL": "org/m", "SPECGATE_PROPOSER": '[{"name": "ngram"}]'}
    assert load_settings([], environ).proposer_names == ("ngram",)


def test_boolean_flags_have_a_negative() -> None:
    settings = load_settings(["--strict-fields", "--no-access-log"], {"SPECGATE_LOG_JSON": "1"})
    assert (settings.strict_fields, settings.access_log, settings.log_json) == (True, False, True)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(
            ["--prot", "1"],
            "--prot: unknown flag; did you mean --port?",
            marks=pytest.mark.needs_vllm,
        ),
        (["--port"], "--port: expected one argument"),
        (["--port", "x"], "--port: input should be a valid integer"),
        (["--port=70000"], "--port: input should be less than or equal to 65535, got '70000'"),
        (["--engine", "sglang"], "--engine: input should be 'vllm' or 'fake', got 'sglang'"),
        (
            ["--max-speculative-tokens", "1"],
            "--proposer: ngram: num_speculative_tokens is 5, more than --max-speculative-tokens, 1",
        ),
        (["--max-model-len", "0"], "--max-model-len: input should be greater than or equal to 1"),
        (["--primary", "x"], "--primary: there is no proposer 'x' (proposers: ngram, suffix,"),
        (["--spec-method", "x"], "--spec-method: there is no proposer 'x'"),
        (["--proposer", "{"], "--proposer: not valid JSON"),
        (["--proposer", '{"name": "none", "method": "ngram"}'], "--proposer: name: 'none' is res"),
        (["--engine-args", '{"worker_cls": "x"}'], "--engine-args: worker_cls is set by Specgate"),
        (["/no/such/folder"], "MODEL: the folder '/no/such/folder' does not exist"),
        (["org/m", "other"], "unexpected argument 'other'"),
        (["--model", "org/m"], "--model: give the model without a flag"),
        (["--config", "/no/file.yaml"], "--config: cannot read /no/file.yaml"),
    ],
)
def test_an_invalid_flag_is_named_as_written(argv: list[str], expected: str) -> None:
    assert error_of(*argv).startswith(expected)


def test_an_invalid_variable_is_named_as_written() -> None:
    assert error_of(SPECGATE_PORT="http").startswith("SPECGATE_PORT: input should be a valid int")
    assert error_of(SPECGATE_BACKUP="x").startswith("SPECGATE_BACKUP: there is no proposer 'x'")


def test_the_error_of_a_kubernetes_variable_explains_it() -> None:
    assert "enableServiceLinks" in error_of(SPECGATE_PORT="tcp://10.0.0.1:8000")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: http", "port in {file}: input should be a valid integer"),
        pytest.param(
            "prot: 1",
            "prot in {file}: unknown setting; did you mean port?",
            marks=pytest.mark.needs_vllm,
        ),
        ("- port", "--config: {file} must hold a mapping"),
        ("port: [", "--config: {file} is not valid YAML"),
        ("config: other.yaml", "config in {file}: unknown setting"),
    ],
)
def test_an_error_in_the_file_names_the_file_and_the_setting(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = config(tmp_path, text)
    assert error_of("--config", file).startswith(expected.format(file=file))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("port: 1\nadmin_key: @s3cret", "line 2, column 12"),
        ("admin_key: *s3cret", "line 1, column 12"),
        ("admin_key: !s3cret x", "line 1, column 12"),
        ("admin_key: !a's3cret x", "line 1, column 12"),
        ("admin_key: 2026-13-45 s3cret\n2026-13-45: x", ""),
        ('admin_key: "s3cret', "line 1, column 19"),
        ("admin_key: s3cret: x", "line 1, column 18"),
        ("admin_key: s3cret\x07", ""),
    ],
)
def test_a_file_that_is_not_yaml_is_not_quoted(tmp_path: Path, text: str, place: str) -> None:
    error = error_of("--config", config(tmp_path, text))
    assert "is not valid YAML: " in error
    assert place in error
    assert "s3cret" not in error


def test_a_flag_overrides_an_invalid_variable() -> None:
    assert load_settings(["--port", "1"], {"SPECGATE_PORT": "http"}).port == 1


def test_several_invalid_settings_have_a_line_each() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(["--port", "x", "--max-num-seqs", "0"], {"SPECGATE_DTYPE": "int3"})
    assert sorted(line.partition(":")[0] for line in caught.value.lines) == [
        "--max-num-seqs",
        "--port",
        "SPECGATE_DTYPE",
    ]


def test_an_error_does_not_show_a_key() -> None:
    assert "sk-secret" not in error_of("--api-key", "sk-secret", "--api-key", "")


def test_an_error_does_not_show_a_long_value_in_full() -> None:
    assert len(error_of("--port", "x" * 5000)) < 300


def test_unknown_variables_are_found() -> None:
    known = {"SPECGATE_PORT": "1", "SPECGATE_URL": "http://a", "PATH": "/"}
    (line,) = unknown_variables({"SPECGATE_PROT": "1", **known})
    assert line == "SPECGATE_PROT: no setting reads this variable; did you mean SPECGATE_PORT?"


def test_the_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(["--help"], {})
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for expected in ("MODEL", "--config", "--max-model-len", "--no-access-log", "--proposer"):
        assert expected in text


def test_policies_rules_and_named_keys_come_from_every_source(tmp_path: Path) -> None:
    rule = "{name: a, match: {structured: true}, use: {proposer: none}}"
    text = f"model: org/m\nspec_policy: {{latency-first: {{}}}}\nrouting_rules: [{rule}]\n"
    settings = load_settings(
        ["--config", config(tmp_path, text), "--named-api-key", "a=1", "--named-api-key", "b=2=="],
        {},
    )
    assert settings.spec_policy == {"latency_first": {}}
    assert [rule.name for rule in settings.rules(())] == ["a"]
    assert list(settings.named_api_key) == ["a", "b"]
    words = '{"name": "%s", "use": {"proposer": "none"}}'
    flags = ["org/m", "--routing-rules", words % "a", "--routing-rules", f"[{words % 'b'}]"]
    variables = {"SPECGATE_NAMED_API_KEY": "a=1,b=2=="}
    settings = load_settings(flags, variables)
    assert [rule.name for rule in settings.rules(())] == ["a", "b"]
    assert settings.named_api_key["b"].get_secret_value() == digest_of(b"2==")


def test_a_named_key_is_never_in_an_error() -> None:
    for texts in (["sk-secret"], ["team a=sk-secret"], ["a=sk-secret", "a=sk-secret"]):
        flags = [word for text in texts for word in ("--named-api-key", text)]
        assert "sk-secret" not in error_of("org/m", *flags)


def test_an_error_in_a_rule_or_policy_has_the_setting_and_the_path(tmp_path: Path) -> None:
    rule = "{name: a, match: {overlap: {min: 2}}, use: {proposer: none}}"
    text = f"model: org/m\nrouting_rules: [{rule}]\n"
    message = error_of("--config", file := config(tmp_path, text))
    assert message.startswith(f"routing_rules in {file}: 0.match.overlap.min: must")
    message = error_of("org/m", SPECGATE_SPEC_POLICY='{"load": {"light": {"max_running": 0.5}}}')
    assert message.startswith("SPECGATE_SPEC_POLICY: load.light.max_running: must be an integer")


def test_the_engines_processes_inherit_no_key() -> None:
    keys = ("API_KEY", "NAMED_API_KEY", "ADMIN_KEY", "METRICS_KEY")
    environ = {f"SPECGATE_{name}": "k" for name in keys} | {"SPECGATE_PORT": "1", "PATH": "/bin"}
    forget_keys(environ)
    assert environ == {"SPECGATE_PORT": "1", "PATH": "/bin"}


def test_vllms_variable_gives_the_key_unless_another_setting_does(tmp_path: Path) -> None:
    def hashes(*argv: str, **environ: str) -> list[bytes]:
        keys = load_settings(argv, {"VLLM_API_KEY": "theirs", **environ}).api_key
        return [key.get_secret_value() for key in keys]

    assert hashes() == [digest_of(b"theirs")]
    assert hashes("--api-key", "ours") == [digest_of(b"ours")]
    assert hashes(SPECGATE_API_KEY="ours") == [digest_of(b"ours")]
    assert hashes("--named-api-key", "a=ours") == []
    assert hashes("--config", config(tmp_path, "api_key: ours")) == [digest_of(b"ours")]
    assert error_of(VLLM_API_KEY=" ").startswith("VLLM_API_KEY: must not be empty")
    assert load_settings([], {"VLLM_API_KEY": ""}).api_key == ()


def test_vllms_variable_is_forgotten_too() -> None:
    environ = {"VLLM_API_KEY": "k", "VLLM_LOGGING_LEVEL": "INFO"}
    forget_keys(environ)
    assert environ == {"VLLM_LOGGING_LEVEL": "INFO"}

"""Each check of the documentation finds what is wrong."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import documentation as checks

ROOT = Path(__file__).resolve().parent.parent


def bad(text: str) -> dict[str, str]:
    return {"docs/bad.md": text}


METHOD = SimpleNamespace(
    name="x",
    default_k=3,
    options={"depth": 1.5, "shared": 2},
    capabilities=SimpleNamespace(members=False),
)
GOOD_TABLE = (
    "\n## Which one to use\n\n| method | default k | use |\n|---|---|---|\n| `x` | `3` | u |\n"
    "\n## Options of models and heads\n\n| option | default | meaning |\n|---|---|---|\n"
    "| `shared` | `2` | s |\n"
    "\n## `x`\n\n| option | default | meaning |\n|---|---|---|\n| `depth` | `1.5` | d |\n"
)


@pytest.mark.parametrize(
    ("findings", "wanted"),
    [
        (checks.broken_links(ROOT, bad("[a](none.md)")), ["docs/bad.md: none.md"]),
        (checks.broken_links(ROOT, bad("[a](api.md#no)")), ["docs/bad.md: api.md#no"]),
        (checks.broken_links(ROOT, bad("[a](api.md#keys) [b](https://x.y)")), []),
        (checks.wrong_paths(ROOT, bad("`server/none.py`")), ["docs/bad.md: server/none.py"]),
        (
            checks.wrong_paths(ROOT, bad("`server/app.py:create_apps`")),
            ["docs/bad.md: server/app.py:create_apps"],
        ),
        (checks.wrong_paths(ROOT, bad("`server/app.py:create_app` `pyproject.toml`")), []),
        (checks.private_places(bad("see /work/main/x")), ["docs/bad.md: /work/main/x"]),
        (checks.private_places(bad("http://mirror.corp/")), ["docs/bad.md: mirror.corp"]),
        (checks.private_places(bad("ask pypi.org")), ["docs/bad.md: pypi.org"]),
        (checks.private_places(bad("http://127.0.0.1:8000/v1 and server/app.py")), []),
        (
            checks.unknown_metrics(bad("vllm:nothing_total"), ["a"]),
            ["docs/bad.md: vllm:nothing_total"],
        ),
        (checks.unknown_metrics(bad("`specgate_a_bucket` specgate_*"), ["specgate_a"]), []),
        (
            checks.unknown_metrics(bad("specgate_b_*"), ["specgate_a"]),
            ["docs/bad.md: specgate_b_*"],
        ),
        (checks.unknown_flags(bad("`--nope 3`"), ["--yes"]), ["docs/bad.md: --nope"]),
        (
            checks.unknown_flags(bad("specgate serve x \\\n  --nope"), ["--yes"]),
            ["docs/bad.md: --nope"],
        ),
        (checks.unknown_flags(bad("SPECGATE_NO_SUCH"), ["--yes"]), ["docs/bad.md: --no-such"]),
        (checks.unknown_flags(bad("`--yes` curl --nope"), ["--yes"]), []),
        (checks.undocumented_options(GOOD_TABLE, [METHOD]), []),
        (checks.undocumented_options(GOOD_TABLE.replace("1.5", "2"), [METHOD]), ["x: `depth`"]),
        (checks.undocumented_options(GOOD_TABLE.replace("`2`", "`4`"), [METHOD]), ["x: `shared`"]),
        (checks.undocumented_options(GOOD_TABLE.replace("`3`", "`4`"), [METHOD]), ["x: k"]),
        (
            checks.undocumented_options(GOOD_TABLE + "| `old` | `1` | o |\n", [METHOD]),
            ["x: `old`"],
        ),
        (list(checks.error_codes(["InvalidField(p, 'm', 'c_d')"])), ["c_d"]),
        (list(checks.error_codes(["f(code='c_d'); Unavailable('m', 'e_f')"])), ["c_d", "e_f"]),
    ],
)
def test_each_check_finds_what_is_wrong(findings: list[str], wanted: list[str]) -> None:
    assert findings == wanted


@pytest.mark.parametrize(
    "test", ["", "by hand", "`tests/server/test_none.py`", "`tests/server/gateway.py`"]
)
def test_a_promise_without_a_test_is_found(test: str) -> None:
    table = (
        "\n## Threats, and what is done\n| threat | what is done | test |\n|---|---|---|\n"
        f"| a | b | {test} |\n| c | d | `tests/test_documentation.py`, `tests/test_docs.py` |\n"
        "| without | a cell |\n"
    )
    assert checks.untested_promises(ROOT, table) == ["a", "without"]


def test_an_unreadable_block_is_found() -> None:
    assert len(checks.unreadable_blocks(bad("```json\n{,}\n```\n```python\nif\n```\n"))) == 2
    assert checks.unreadable_blocks(bad("```json\n{}\n```\n")) == []

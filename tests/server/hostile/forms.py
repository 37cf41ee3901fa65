"""Regular expressions, choices and grammars."""

from tests.server.hostile.body import Hostile, outputs, pattern


def doubling_rules(count: int) -> str:
    rules = [f"r{i} ::= r{i - 1} r{i - 1}" for i in range(1, count + 1)]
    return "\n".join([f"root ::= r{count}", 'r0 ::= "a"', *rules])


def rules(count: int) -> str:
    chain = (f'r{i} ::= "{i}" r{i + 1} | "x"' for i in range(count))
    return "\n".join(["root ::= r0", *chain, f'r{count} ::= "y"'])


AMBIGUOUS = 'root ::= s\ns ::= s s | s s s | [a-z ] | ""'

FORMS = (
    Hostile(
        "100,000 choices",
        lambda: {"structured_outputs": {"choice": [f"c{i}" for i in range(100_000)]}},
        "structured_outputs.choice",
    ),
    Hostile(
        "2,000 choices", lambda: {"structured_outputs": {"choice": [f"c{i}" for i in range(2000)]}}
    ),
    Hostile("a choice of 200,000", outputs(choice=["ab cd" * 40_000])),
    Hostile(
        "2,000 choices of 100", outputs(choice=[f"{i:05}" + "ab cd" * 19 for i in range(2000)])
    ),
    Hostile("a literal of 90,000 in Lark", outputs(grammar=f'start: "{"ab cd" * 18_000}"')),
    Hostile("a choice of 1 MB", outputs(choice=["a" * 1_000_000]), "structured_outputs.choice"),
    Hostile("100,000 guided choices", lambda: {"guided_choice": ["a"] * 100_000}, "guided_choice"),
    Hostile("a regex of 1 MB", pattern("a" * 1_000_000), "structured_outputs.regex"),
    Hostile("a guided regex of 1 MB", lambda: {"guided_regex": "a" * 1_000_000}, "guided_regex"),
    Hostile("a regex that is wrong after 10 kB", pattern("a" * 10_000 + "(")),
    Hostile("9,000 parentheses", pattern("(" * 9000 + "a" + ")" * 9000)),
    Hostile("a repetition", pattern("a{1,100000}")),
    Hostile("nested repetitions", pattern("((a{1,500}){1,500}){1,500}")),
    Hostile("a wide repetition of alternatives", pattern("(a|b|ab){1,5000}")),
    Hostile("a regex of 2^20 states", pattern("(a|b)*a(a|b){20}")),
    Hostile("a regex that every text keeps going", pattern(r"(.|\n)*[xyz](.|\n){60}[xyz](.|\n)*")),
    Hostile("words of Unicode", pattern(r"(\w+\s){50}\W{50}\p{L}{1,1000}")),
    Hostile("intersections by look-ahead", pattern(r"(?=.*a)(?=.*b)(?=.*c).*")),
    Hostile(
        "a grammar of 20,000 rules",
        lambda: {"structured_outputs": {"grammar": rules(20_000)}},
        "structured_outputs.grammar",
    ),
    Hostile("llama.cpp's grammar of 20,000 rules", lambda: {"grammar": rules(20_000)}, "grammar"),
    Hostile("a grammar of 3,000 rules", outputs(grammar=rules(3000))),
    Hostile("30 rules that double", outputs(grammar=doubling_rules(30))),
    Hostile("an ambiguous grammar", outputs(grammar=AMBIGUOUS)),
    Hostile(
        "left recursion in Lark",
        outputs(grammar='start: start start | start start start | "a" | ""'),
    ),
    Hostile(
        "a repetition in Lark", outputs(grammar='start: x{1,1000}\nx: y{1,1000}\ny: "a" | "b"')
    ),
    Hostile(
        "structural tags", lambda: {"structural_tag": {"tags": ["a"] * 1000}}, "structural_tag"
    ),
)
"""Regular expressions, choices and grammars."""

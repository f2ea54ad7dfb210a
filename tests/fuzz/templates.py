"""Random hostile chat templates: each renders, is refused or exceeds a limit, and memory is flat.

Run by hand: ``python -m tests.fuzz.templates --seed 1 --count 1000``.
"""

import argparse
import datetime
import os
import random
import time
from dataclasses import dataclass

from localspec.chat.templates.renderer import LIMITS, Renderer
from localspec.core import machine
from localspec.core.errors import TemplateError, TemplateLimitExceeded

_NAME = "The chat template of fuzz.gguf"
_NOW = datetime.datetime(2024, 7, 26)
_VARIABLES = {
    "messages": [{"role": "user", "content": "Hi <b>\u00e9</b>"}] * 9,
    "add_generation_prompt": True,
    "bos_token": "<s>",
}
_NUMBERS = ("0", "-1", "3", "1000", "99999", "10**6", "10**7", "5*10**9", "2**63", "10**99", "1.5")
_TEXTS = ("'a'", "'a b\\n'", "'<('", "'http://a.b '", "'%d'", "'{:>9}'", "messages", "bos_token")
_ONE = (
    "{a}|length", "{a}|urlize", "{a}|striptags", "{a}|escape", "{a}|title", "{a}|wordcount",
    "{a}|list", "{a}|sort", "{a}|unique|list", "{a}|reverse|list", "{a}|string", "{a}|tojson",
    "{a}|pprint", "{a}|xmlattr", "{a}|items|list", "{a}|sum", "{a}|max", "{a}|urlencode",
    "{a}|map('upper')|join", "{a}|groupby('role')|list", "{a}[::-1]", "{a}.upper()",
    "{a}|filesizeformat", "{a}.splitlines()", "strftime_now({a})", "{a}.encode()", "-{a}",
)  # fmt: skip
_TWO = (
    "{a}|center({n})", "{a}|indent({n})", "{a}|wordwrap({n})", "{a}|truncate({n})", "{a}*{n}",
    "{n}**{n}", "{n}*{n}", "range({n})|join({a})", "{a}|replace({b},{a}*1000)", "{a}|batch({n})",
    "{a}|slice({n})|list", "{a}|tojson(indent={n})", "'%{n}d'%{n}", "{a}%{b}", "{a}.format({n})",
    "{a}.ljust({n})", "{a}.zfill({n})", "{a}.expandtabs({n})", "lipsum(n={n})", "range({n})|list",
    "[{a}]*{n}", "({a},{b})", "{{'k':{a},'j':{b}}}", "{a}~{b}", "{a}+{b}", "{a}.split({b})",
    "{a}.join({b})", "{a}.replace('',{b})", "{a}|round({n})", "{a}[{n}:]", "{a} in {b}",
    "'{{:>{n}}}'.format({a})", "cycler({a},{b}).next()", "{a} if {b} else {n}", "{a}.count({b})",
)  # fmt: skip
_BLOCKS = (
    "{{{{ {e} }}}}",
    "{{% for i in range(99999) %}}{inner}{{% endfor %}}",
    "{{% for m in messages %}}{inner}{{% endfor %}}",
    "{{% set x = {e} %}}{{{{ x }}}}",
    "{{% set n = namespace(x={e}) %}}{{% for i in range(40) %}}{{% set n.x = n.x + n.x %}}"
    "{{% endfor %}}{{{{ n.x|length }}}}",
    "{{% macro f(n) %}}{inner}{{{{ f(n) }}}}{{{{ f(n) }}}}{{% endmacro %}}{{{{ f(9) }}}}",
    "{{% filter indent({number}) %}}{inner}{{% endfilter %}}",
    "{{% set x %}}{inner}{{% endset %}}{{{{ x * 1000 }}}}",
    "{{% for a in messages recursive %}}{inner}{{{{ loop(messages) }}}}{{% endfor %}}",
    "{{% if {e} %}}{inner}{{% else %}}{inner}{{% endif %}}",
    "{{% call(x) f() %}}{inner}{{% endcall %}}",
    "{{{{ raise_exception({e}) }}}}",
)


@dataclass
class Figures:
    """How many templates ended in which way, and what this process uses at the end."""

    rendered: int = 0
    refused: int = 0
    exceeded: int = 0
    resident_bytes: int = 0


def expression(chance: random.Random, depth: int) -> str:
    """A random expression."""
    if depth == 0 or chance.random() < 0.1:
        return chance.choice(_TEXTS + _NUMBERS)
    form = chance.choice(_ONE + _TWO)
    a, b = (f"({expression(chance, depth - 1)})" for _ in range(2))
    return form.format(a=a, b=b, n=chance.choice(_NUMBERS))


def template(chance: random.Random, depth: int = 3) -> str:
    """A random template."""
    if depth == 0:
        return "{{ " + expression(chance, 1) + " }}"
    return chance.choice(_BLOCKS).format(
        e=expression(chance, chance.randint(1, depth)),
        inner=template(chance, depth - 1),
        number=chance.choice(_NUMBERS),
    )


def fuzz(seed: int, count: int, renderer: Renderer) -> Figures:
    """Render a random template for each of ``count`` seeds; raises what is no template's error."""
    figures = Figures()
    for case in range(seed, seed + count):
        source = template(random.Random(case))
        try:
            renderer.names_read(source, _NAME)
            renderer.fill(source, _VARIABLES, _NOW, _NAME)
            figures.rendered += 1
        except TemplateError:
            figures.refused += 1
        except TemplateLimitExceeded as error:
            assert "more than" in error.message, (case, error.message)
            figures.exceeded += 1
        assert renderer.fill("{{ x }}", {"x": 1}, _NOW, _NAME) == "1", case
    renderer.close()
    figures.resident_bytes = machine.resident_bytes(os.getpid())
    return figures


def main() -> None:
    """Print the figures of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    begun = time.monotonic()
    figures = fuzz(given.seed, given.count, Renderer(LIMITS._replace(seconds=0.5)))
    print(f"{figures} in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()

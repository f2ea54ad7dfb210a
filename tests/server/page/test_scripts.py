"""The page's scripts in node, with as much of a browser as they need (dom.mjs)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.server import app
from tests.support.served import Site, gated_toy, serving

FOLDER = Path(app.__file__).parent / "page"
Run = Callable[..., Any]
SHOW = """
const { MarkdownView } = await load("markdown.js");
const { element } = await load("elements.js");
const parent = element("div"), view = new MarkdownView(parent);
for (const part of given) view.add([part]);
return parent.tree();
"""
ALLOWED = {
    "div",
    "p", "h3", "h4", "h5", "h6", "hr", "blockquote", "ul", "ol", "li", "pre", "code",
    "table", "thead", "tbody", "tr", "th", "td", "strong", "em", "del", "a", "span", "button",
}  # fmt: skip
SNIPPETS = [
    "\n", "\n\n", "  ", "    ", "a", "wörd ", "1. ", "- ", "* ", "> ", "# ", "```", "```py\n",
    "~~~\n", "```js\n", "return ", "`", "``", "*", "**", "***", "_", "__", "~~", "[", "](", ")",
    "![", "\\", "|",
    "|---|\n", "a | b\n", "--- | ---\n", "---\n", "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "&lt;", "javascript:alert(1)", "data:text/html,x", "https://a.b/c", "http://",
    "[x](https://a.b)", "[y](javascript:x)", "$", "$$", "$$\n", "\\(", "\\)", "\\[", "\\]",
    "'", '"', "//", "/*", "#", "def f",
    "0x1f", "\0", "\ud800", "\r", "\t",
]  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run a script in node: the body of an async function, which may import the page's files."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    driver = [node, str(Path(__file__).with_name("run.mjs")), str(FOLDER)]
    with subprocess.Popen(driver, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def run(script: str, given: object = None) -> Any:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps({"script": script, "given": given}).encode() + b"\n")
            process.stdin.flush()
            reply = json.loads(process.stdout.readline())
            assert "error" not in reply, reply["error"]
            return reply["result"]

        yield run
        process.kill()


def shown(run: Run, *parts: str) -> Any:
    return run(SHOW, [{"text": part, "origin": "draft"} for part in parts])


def html(tree: Any) -> str:
    """Elements in short, without spans and their attributes."""
    if isinstance(tree, str):
        return tree
    name, attributes, *children = tree
    inside = "".join(map(html, children))
    if name in ("span", "button"):
        return inside if name == "span" else ""
    given = "".join(f" {key}={value}" for key, value in attributes.items() if key != "rel")
    return f"<{name}{given}>{inside}</{name}>"


def elements(tree: Any) -> Iterator[Any]:
    if not isinstance(tree, str):
        yield tree
        for child in tree[2:]:
            yield from elements(child)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# A *b* #\ntext", "<h3>A <em>b</em></h3><p>text</p>"),
        ("***a*** __b__ x_y_z 2 * 3 ~~c~~", "<p><em><strong>a</strong></em> <strong>b</strong> "
         "x_y_z 2 * 3 <del>c</del></p>"),
        ("**`**k` [0, 1)** \\*d\\* **e:**f", "<p><strong><code>**k</code> [0, 1)</strong> "
         "*d* <strong>e:</strong>f</p>"),
        ("- a\n- b\n  - c\n\n3. d", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul>"
         "</li></ul><ol start=3><li><p>d</p></li></ol>"),
        ("> a\n> b\n\n---", "<blockquote><p>a\nb</p></blockquote><hr></hr>"),
        ("x\n|a|b|\n|-|-:|\n|1|\\||", "<p>x</p><div class=table><table><thead><tr>"
         "<th>a</th><th class=right>b</th></tr></thead><tbody><tr><td>1</td>"
         "<td class=right>|</td></tr></tbody></table></div>"),
        ("```py\nif *a*:\n\n  b\n```\nc", "<div class=code><div class=bar>"
         "<p class=language>py</p></div><pre><code>if *a*:\n\n  b</code></pre></div><p>c</p>"),
        ("[a](https://b.c/d_(e)) ![f](http://g) https://h.i.", "<p><a href=https://b.c/d_(e)>a</a> "
         "<a href=http://g>f</a> <a href=https://h.i>https://h.i</a>.</p>"),
        ("[![a](https://b)](https://c) <d@e.f>", "<p><a href=https://c>a</a> "
         "<a href=mailto:d@e.f>d@e.f</a></p>"),
        ("\\``` a", "<p>``` a</p>"),
        ("[a](javascript:b) <b>&lt;", "<p>[a](javascript:b) <b>&lt;</p>"),
    ],
)  # fmt: skip
def test_markdown_is_elements(run: Run, source: str, expected: str) -> None:
    assert html(shown(run, source)) == f"<div>{expected}</div>"


@given(st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=5), max_size=40))
@settings(max_examples=300, deadline=None)
def test_hostile_markdown_is_safe_and_the_same_in_parts(run: Run, parts: list[str]) -> None:
    source = "".join(parts)
    tree = shown(run, source)
    assert shown(run, *parts) == tree  # streamed in parts, and at once
    for name, attributes, *_ in elements(tree):
        assert name in ALLOWED | MATH
        assert attributes.keys() <= {"class", "href", "rel", "start"}
        if name == "a":
            assert re.match("https?://|mailto:", attributes["href"])
            assert attributes["rel"] == "noopener noreferrer"


@given(
    # But for formulas, addresses, numbers of items, and cells that a row has more than its table.
    st.lists(st.sampled_from([s for s in SNIPPETS if not re.search(r"[($1]|--", s)]), max_size=40)
)
@settings(max_examples=150, deadline=None)
def test_no_word_is_lost(run: Run, parts: list[str]) -> None:
    tree = shown(run, "".join(parts))
    text = "".join(
        t for e in elements(tree) if e[0] != "button" for t in e[2:] if isinstance(t, str)
    )
    letters = [c for c in text if c.isalnum()]
    assert letters == [c for c in "".join(parts) if c.isalnum()]


@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [
        (
            "python",
            "if x1 == 0x1f: # if\n  f'if'",
            "keyword if, number 0x1f, comment # if, string 'if'",
        ),
        ("Python", '"""a\n\'b', 'string """a\n\'b'),
        ("js", "let a = `x${1}` // 2", "keyword let, string `x${1}`, comment // 2"),
        ("c", "/* a\n int", "comment /* a\n int"),
        ("rust", "fn f<'a>(c: 'b')", "keyword fn, string 'b'"),
        ("bash", "echo a#b # c", "comment # c"),
        ("sql", "SELECT 1.5 -- a", "keyword SELECT, number 1.5, comment -- a"),
        ("json", '{"a": true}', 'string "a", keyword true'),
        ("html", '<!-- a --> <b c="d">', 'comment <!-- a -->, string "d"'),
        ("text", "if 1", ""),
        ("constructor", "if 1", ""),
    ],
)
def test_code_is_coloured(run: Run, language: str, code: str, expected: str) -> None:
    script = """
    const { coloured } = await load("code.js");
    return coloured(...given).map(({ from, to, kind }) => `${kind} ${given[0].slice(from, to)}`);
    """
    assert ", ".join(run(script, [code, language])) == expected


@pytest.mark.parametrize("mark", ["'", '"', "\\", "/*", "'''\"", "`", "<!--", "1e", "a#", "'\\"])
@pytest.mark.parametrize("language", ["python", "js", "c", "rust", "bash", "sql", "html"])
def test_long_hostile_code_ends(run: Run, mark: str, language: str) -> None:
    shown(run, f"```{language}\n" + mark * 20_000)


def test_code_that_was_shown_is_not_made_again(run: Run) -> None:
    script = """
    const { MarkdownView } = await load("markdown.js");
    const { element } = await load("elements.js");
    const parent = element("div"), view = new MarkdownView(parent);
    view.add([{ text: given[0] }]);
    const before = [...parent.querySelector("code")];
    view.add([{ text: given[1] }]);
    const after = [...parent.querySelector("code")];
    return before.filter((e) => !after.includes(e)).map((e) => e.textContent);
    """
    assert run(script, ["```py\nif a:\n  b = 'c'\n  d", "e"]) == ["  ", "d"]


KEPT = """
const { MarkdownView } = await load("markdown.js");
const { element } = await load("elements.js");
const parent = element("div"), view = new MarkdownView(parent);
view.add([{ text: given[0], origin: "draft" }]);
const before = [...parent].filter((e) => e.tagName !== "SPAN");
view.add([{ text: given[1], origin: "plain" }]);
const after = [...parent];
return before.filter((e) => !after.includes(e)).map((e) => e.tagName);
"""


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("a\n\nb\n\n# c\n\nd", " more"),
        ("- a\n- *b*\n  1. c", "d\n  2. e"),
        ("> *a*\n>\n> b", "c"),
        ("|a|\n|-|\n|*b*|\n", "|c|\n|d|"),
        ("```py\na", "b\nc"),
    ],
)
def test_elements_of_what_goes_on_stay(run: Run, source: str, more: str) -> None:
    assert run(KEPT, [source, more]) == []


def test_finished_blocks_are_not_parsed_again(run: Run) -> None:
    script = """
    const { MarkdownView } = await load("markdown.js");
    const { element } = await load("elements.js");
    const view = new MarkdownView(element("div"));
    for (const text of given) view.add([{ text }]);
    return view.text.text;
    """
    assert run(script, ["a\n\nb\r\n\r\n# c\n\nd", " more"]) == "# c\n\nd more"


@pytest.mark.parametrize(
    "source",
    [
        "a *b* `c` \\* [d](https://e) ~~f~~ **g** https://h.i j\n  k",
        "- a\n  > 1. b\n  >    c\n\n# d #",
        "|a|b\n|-|-\n|a|*a*",
        "  ```\n  a\n   b\n  ```",
        "a $b$ \\(c\\)\n\n$$\nd\n$$",
    ],
)
def test_each_character_has_its_origin(run: Run, source: str) -> None:
    parts = [{"text": c, "origin": f"o{at}"} for at, c in enumerate(source)]
    found = [
        (source[int(e[1]["class"][1:])], e[2].rstrip("\n"))
        for e in elements(run(SHOW, parts))
        if e[0] == "span" and re.fullmatch(r"o\d+", e[1].get("class", ""))
    ]
    assert found and all(here == shown for here, shown in found)


# -- formulas -------------------------------------------------------------------------------


def formulas(run: Run, *parts: str) -> list[tuple[str, str]]:
    """Each formula: how it is shown, and its TeX; of one that is not set, its source."""
    found = []
    for e in elements(shown(run, *parts)):
        if e[0] == "span" and e[1].get("class", "").startswith("formula"):
            tex = [inner[-1] for inner in elements(e) if inner[0] == "annotation"]
            found.append((e[1]["class"], tex[0] if tex else html(e[-1])))
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a $x^2$, $n$ and $5$.", ["x^2", "n", "5"]),
        ("\\(x\\) \\[ y \\] $$z$$", ["x", " y ", "z"]),
        ("$a_1 * b_2 * c$ $\\$5$", ["a_1 * b_2 * c", "\\$5"]),
        ("- a\n  $$\n  x\n  + y\n  $$\n- b", ["\nx\n+ y\n"]),
        ("so\n\\[\nx\n\\]\nis", ["\nx\n"]),
        ("> $$x$$\n> a", ["x"]),
        ("| a |\n|-|\n| $x$ |", ["x"]),
        # No formulas: prices, variables of a shell, code, brackets that are escaped.
        ("$5 and $10, $5-$10, US$5, or A$7, from $5 (US$) to 9$", []),
        ("$HOME/$USER, `$x$`, ```$x$```, \\$x$, $ x $, $$", []),
        ("\\[1\\] and \\[a\\](b), \\(", []),
        ("```\n$$\nx\n$$\n```", []),
        ("$$ are\n\ndollars $$", []),
    ],
)
def test_formulas_are_found(run: Run, source: str, expected: list[str]) -> None:
    assert [tex for _, tex in formulas(run, source)] == expected
    assert [tex for _, tex in formulas(run, *source)] == expected


def test_a_formula_that_is_not_complete_is_its_source(run: Run) -> None:
    shown = "formula displayed"
    assert formulas(run, "a\n\n$$\n\\frac{1") == [(shown, "<code class=source>$$\n\\frac{1</code>")]
    assert formulas(run, "a\n\n$$\n\\frac{1", "}{2}\n$$") == [(shown, "\n\\frac{1}{2}\n")]
    wrong = "$$\\frac{1$$"
    assert formulas(run, wrong) == [(shown, f"<code class=source>{wrong}</code>")]


def test_letters_of_an_alphabet_are_its_own(run: Run) -> None:
    tree = shown(run, "$\\mathbb{RA} \\mathcal{LAe} \\mathfrak{Cb} \\mathrm{d}$")
    (math,) = (e for e in elements(tree) if e[0] == "math")
    (row,) = (e for e in elements(math) if e[0] == "semantics")
    assert "".join(t for e in elements(row[2]) for t in e[2:] if isinstance(t, str)) == "ℝ𝔸ℒ𝒜ℯℭ𝔟d"


MATH = {
    "math", "semantics", "annotation", "mrow", "mi", "mn", "mo", "mtext", "ms", "mspace", "mstyle",
    "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mtable",
    "mtr", "mtd", "mpadded", "mphantom", "menclose",
}  # fmt: skip


@pytest.mark.parametrize(
    "tex",
    [
        "\\href{javascript:alert(1)}{x}", "\\url{https://a.b}", "\\htmlClass{a}{x}",
        "\\includegraphics[width=1em]{https://a.b/c.png}", "\\htmlStyle{color:red}{x}",
        "<script>alert(1)</script>", "\\text{<img src=x>}", "\\rule{9999em}{9999em}",
        "\\def\\a{\\a\\a}\\a", "\\unknown", "{" * 900, "\\frac" * 300, "^" * 900, "\\sqrt{" * 150,
    ],
)  # fmt: skip
def test_hostile_formulas_are_safe(run: Run, tex: str) -> None:
    for name, attributes, *_ in elements(shown(run, f"$${tex}$$")):
        assert name in ALLOWED | MATH
        assert attributes.keys() <= {"class"}


@pytest.mark.parametrize(
    "mark",
    ["*a ", "[", "`a ``", "> ", "[a](", "| ", "/*", "**a_ ", "- ", "$a ", "\\(", "$$\n", "http://"],
)
def test_long_hostile_text_ends(run: Run, mark: str) -> None:
    shown(run, mark * 5000)


def test_conversations_are_stored(run: Run) -> None:
    script = """
    browse();
    const { newConversation, read, remove, stored, title, write } = await load("conversations.js");
    const made = { ...newConversation(), turns: [{ text: "Hello\\nthere" }] };
    const large = { id: "large", turns: [{ text: "x".repeat(5_000_000) }] };
    const problems = [write(made), write(large)];
    localStorage.setItem("localspec conversation x", "{");
    const found = stored().map(title), same = read(made.id).turns[0].text;
    remove(made.id);
    return [problems, found, same, stored().length];
    """
    problems, found, same, left = run(script)
    assert problems[0] == "" and problems[1].startswith("The browser's storage is full")
    assert (found, same, left) == (["Hello there"], "Hello\nthere", 0)


def test_a_chooser_needs_several_models(run: Run) -> None:
    script = """
    browse(html);
    const { ModelChooser } = await load("settings.js");
    const chooser = new ModelChooser(document.getElementById("models"));
    chooser.show(given);
    return [chooser.chosen, chooser.select.textContent];
    """
    several = [
        {"id": "a", "status": {"value": "unloaded", "failed": True}},
        {"id": "b", "status": {"value": "loaded"}},
    ]
    assert run(script, several) == ["b", "a (failed)b (loaded)"]
    assert run(script, [{"id": "a"}, {"id": "a.gguf"}])[0] == ""


def test_a_conversation_with_a_server(run: Run, toy_server: Site) -> None:
    script = """
    browse(html, given);
    const $ = (id) => document.getElementById(id);
    const until = async (met) => { while (!met()) await new Promise((go) => setTimeout(go, 10)); };
    await load("page.js");
    await until(() => $("model").textContent);
    $("question").value = "hello <b>";
    $("composer").dispatchEvent(new Event("submit", { cancelable: true }));
    await until(() => $("turns").children.length === 2 && $("stop").hidden);
    const names = () => $("list").querySelectorAll("button").map((e) => e.textContent);
    const said = $("turns").querySelectorAll(".body").map((e) => e.textContent);
    $("new").click();
    const empty = [$("turns").children.length, names()];
    $("list").querySelector("button").click();
    return [said, empty, $("turns").children.length, $("notice").textContent];
    """
    said, empty, reopened, notice = run(script, toy_server.url)
    assert said[0] == "hello <b>" and said[-1]
    assert (empty, reopened, notice) == ([0, ["hello <b>"]], 2, "")


OPENED = """
browse(html, given.url);
const $ = (id) => document.getElementById(id);
const until = async (met) => { while (!met()) await new Promise((go) => setTimeout(go, 10)); };
const page = await load(`page.js?${Math.random()}`);
const press = (name, at = 0) =>
  $("turns").querySelectorAll("button").filter((e) => e.textContent === name).at(at).click();
const ask = async (text) => {
  const { length } = $("turns").children;
  $("question").value = text;
  $("composer").dispatchEvent(new Event("submit", { cancelable: true }));
  await until(() => $("stop").hidden && $("turns").children.length !== length + 1);
};
const texts = () => $("turns").querySelectorAll(".text").map((e) => e.textContent);
const versions = () => $("turns").querySelectorAll(".versions").map((e) => e.textContent);
"""


def test_a_gauge_shows_how_full_the_context_is(run: Run, toy_server: Site) -> None:
    script = (
        OPENED
        + """
    const meter = $("context");
    const gauge = () => [meter.hidden, meter.value, meter.max, meter.title, $("held").textContent];
    await until(() => $("model").textContent);
    const empty = gauge();
    await ask("first");
    const one = gauge();
    await ask("second");
    return [empty, one, gauge()];
    """
    )
    empty, one, two = run(script, {"url": toy_server.url})
    assert empty[0] and not one[0] and 0 < one[1] < two[1] < two[2]
    assert two[3] == f"The context holds {two[1]:,} of {two[2]:,} tokens"
    assert (empty[4], two[4]) == ("", f"{two[1]:,} / {two[2]:,}")


def test_former_versions_of_questions_and_answers_stay(run: Run, toy_server: Site) -> None:
    script = (
        OPENED
        + """
    await until(() => $("model").textContent);
    await ask("first");
    await ask("second");
    press("Edit");
    await ask("other");
    const edited = [texts(), versions()];
    press("‹");
    const former = [texts(), versions()];
    press("›");
    $("again").click();
    await until(() => $("stop").hidden);
    const again = [texts(), versions()];
    press("Delete");
    return [edited, former, again, $("turns").children.length];
    """
    )
    edited, former, again, left = run(script, {"url": toy_server.url})
    assert edited == [["other"], ["‹2/2›"]]
    assert former == [["first", "second"], ["‹1/2›"]]
    assert again == [["other"], ["‹2/2›", "‹2/2›"]]
    assert left == 0


def test_a_question_is_deleted_after_asking(run: Run, toy_server: Site) -> None:
    script = (
        OPENED
        + """
    await until(() => $("model").textContent);
    await ask("first");
    await ask("second");
    const asked = [], left = [];
    for (const reply of [false, true, false, true]) {
      globalThis.confirm = (sentence) => (asked.push(sentence), reply);
      press("Delete");
      left.push([texts(), $("list").children.length]);
    }
    return [asked, left];
    """
    )
    asked, left = run(script, {"url": toy_server.url})
    one = "Delete the question “first” and its answer?"
    assert asked == [one, one, *["Delete the conversation “second”?"] * 2]
    assert left == [[["first", "second"], 1], [["second"], 1], [["second"], 1], [[], 0]]


def test_what_the_page_exports_is_imported(run: Run) -> None:
    script = """
    browse();
    const { imported, messages } = await load("conversations.js");
    const { system, conversation } = imported(JSON.stringify(given));
    const refused = ["{}", "[]", "null", "hello",
      '{"messages": [{"role": "assistant", "content": "a"}]}',
      '{"messages": [{"role": "user", "content": 3}]}'].map((text) => {
      try { return imported(text); } catch (error) { return error.message; }
    });
    return [{ system, messages: messages(conversation) }, refused];
    """
    saved = {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": "Yes.", "reasoning_content": "Well."},
        ],
    }
    assert run(script, saved) == [
        saved,
        [
            *["it is no conversation saved as JSON"] * 4,
            "it does not begin with a question",
            "a message has no text",
        ],
    ]


def test_an_imported_answer_has_no_figures(run: Run) -> None:
    script = """
    browse();
    const { AnswerView } = await load("answer.js");
    const meter = (figures) => new AnswerView({ runs: [], figures }).meter.textContent;
    return [meter({ ended: "stop" }), meter({ ended: "cut off" }), meter({})];
    """
    assert run(script) == ["", "cut off", "waiting for the first token"]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"longest": 40, "context": 100}, "stopped at --max-tokens"),
        ({"longest": 50, "context": 60}, "stopped at the end of the context (--ctx-size)"),
        ({"longest": 50, "context": 100}, "stopped at a limit: tokens, time or context"),
        ({"context": 0}, "stopped at a limit: tokens, time or context"),
    ],
)
def test_the_limit_of_an_answer_is_named(run: Run, limits: dict[str, int], words: str) -> None:
    script = """
    const { noteFigures } = await load("answer.js");
    const timings = { predicted_n: 40, prompt_n: 15, cache_n: 5 }, figures = {};
    noteFigures(figures, { timings, choices: [{ finish_reason: "length" }] }, given);
    return figures.ended;
    """
    assert run(script, limits) == words


def test_figures_do_not_call_a_draft_that_gained_wrong(run: Run) -> None:
    script = """
    const { AnswerView } = await load("answer.js");
    const figures = { tokens: 90, speed: 1, drafted: 102, accepted: 81, gain: 1.27, ended: "stop" };
    figures.status = "draft_too_often_wrong";
    return new AnswerView({ runs: [], figures }).meter.querySelector("p").textContent;
    """
    assert (
        "81 of 102 drafted tokens accepted · the draft off in the last round (expected to be right "
        "too seldom for its cost)"
    ) in run(script)


def test_a_waiting_question_says_how_many_come_first_and_escape_ends_it(run: Run) -> None:
    script = (
        OPENED
        + """
    await until(() => $("model").textContent);
    ask("hello");
    const meter = () => $("turns").querySelector(".meter")?.textContent ?? "";
    await until(() => meter().includes("yours"));
    const seen = meter();
    events.dispatchEvent(Object.assign(new Event("keydown"), { key: "Escape" }));
    await until(() => $("stop").hidden);
    return [seen, $("question").value];
    """
    )
    engine, gate = gated_toy()
    with serving(engine) as site, ThreadPoolExecutor() as other:
        first = other.submit(site.ask)
        assert gate.began.acquire(timeout=60)
        seen = run(script, {"url": site.url})
        gate.let(10_000)
        first.result()
    assert seen == ["1 request before yours", "hello"]

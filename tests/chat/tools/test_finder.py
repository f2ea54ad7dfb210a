"""Finder: text and calls come apart at any cut of the answer, and nothing of it is lost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from localspec.chat.tools import finder, forms
from localspec.chat.tools.finder import CallFinder, Found
from localspec.chat.tools.forms import CallForm
from localspec.chat.tools.tool import Tool, ToolCall, ToolCallDelta

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS = (Tool("f", SCHEMA, {}), Tool("g", {}, {}))
CALL = ToolCall("f", '{"city": "Oslo"}')
FORMS = (
    forms.HERMES, forms.QWEN_XML, forms.GLM, forms.MINIMAX, forms.MISTRAL_LIST,
    forms.MISTRAL_NAMED, forms.LLAMA, forms.HARMONY, forms.DEEPSEEK, forms.DEEPSEEK_V31,
    forms.KIMI, forms.GRANITE, forms.NEMOTRON, forms.COMMAND, forms.APRIEL, forms.FUNCTIONARY,
    forms._dsml("function_calls"), forms.GEMMA,
)  # fmt: skip


def find(form: CallForm, pieces: Sequence[str]) -> tuple[str, list[ToolCall]]:
    """The text of the pieces, and the calls in them."""
    reader = CallFinder(form, TOOLS)
    found = [part for piece in pieces for part in reader.push(piece)]
    found += reader.push("", final=True)
    assert reader.held == ""
    calls = [part for part in found if isinstance(part, ToolCall)]
    assert joined(found) == [(call.name, call.arguments, call.id) for call in calls]
    return "".join(part for part in found if isinstance(part, str)), calls


def joined(found: Sequence[Found]) -> list[tuple[str, str, str]]:
    """The name, arguments and id of each call, from its deltas."""
    deltas = [part for part in found if isinstance(part, ToolCallDelta)]
    calls = [list(group) for _, group in groupby(deltas, lambda delta: delta.index)]
    assert [call[0].index for call in calls] == list(range(len(calls)))
    assert all((delta.id, delta.name) == (None, None) for call in calls for delta in call[1:])
    return [
        (call[0].name or "", "".join(delta.arguments for delta in call), call[0].id or "")
        for call in calls
    ]


def written(form: CallForm, name: str = "f", city: str = "Oslo") -> str:
    """A call as the family writes it."""
    if form is forms.GEMMA:
        return f'<|tool_call>call:{name}{{city:<|"|>{city}<|"|>}}<tool_call|>'
    arguments = json.dumps({"city": city})
    if form.parameter is not None:
        arguments = form.parameter[0].replace("KEY", "city") + city + form.parameter[1]
    return form.begin.replace("NAME", name) + arguments + form.end


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.family)
def test_a_call_is_taken_out_of_the_text(form: CallForm) -> None:
    call = written(form)
    cases = [(call, "", 1), (f"{call}\n", "", 1), (f"{call}\n{call}", "", 2)]
    if not form.first:
        cases += [(f"Let me look.\n\n{call}", "Let me look.", 1)]
    for text, said, count in cases:
        shown, calls = find(form, [text])
        assert find(form, list(text)) == (shown, calls)
        assert shown == said
        assert [(call.name, call.arguments) for call in calls] == [("f", CALL.arguments)] * count


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.family)
def test_what_is_no_call_is_text(form: CallForm) -> None:
    call = written(form)
    for text in (written(form, "h"), call[: call.index("city") // 2], *form.openings):
        assert find(form, [text]) == find(form, list(text)) == (text, [])


@pytest.mark.parametrize("before", ["", "Let me look.\n"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.family)
def test_a_call_that_is_cut_off_before_its_arguments_is_no_text(
    form: CallForm, before: str
) -> None:
    call = written(form)
    if form.first and before:
        return  # bare JSON is a call at the beginning only
    named = form.begin.find("NAME") if form.begin else call.index("f{")
    for length in range(finder._SURE_MARK + 1 if before else 1, named + 2):
        reader = CallFinder(form, TOOLS)
        found = [part for char in before + call[:length] for part in reader.push(char)]
        found += reader.push("", final=True, cut=True)
        assert "".join(map(str, found)).rstrip() == before.rstrip(), call[:length]


@pytest.mark.parametrize(
    "text",
    ["a <", "1 < 2, [T", '{"n": 1', '{"city": "Os', "```py", "<table", '{"name": "Alice", "a'],
)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.family)
def test_text_that_is_cut_off_stays(form: CallForm, text: str) -> None:
    reader = CallFinder(form, TOOLS)
    assert "".join(map(str, [*reader.push(text), *reader.push("", True, cut=True)])) == text


@pytest.mark.parametrize("text", ['```json\n{"name": "', '[{"na', '{ "name" : "f", "argu'])
def test_a_bare_call_that_is_cut_off_is_no_text(text: str) -> None:
    reader = CallFinder(forms.HERMES, TOOLS)
    assert [*reader.push(text), *reader.push("", True, cut=True)] == []


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.family)
def test_the_end_of_a_call_that_is_cut_off_is_no_text(form: CallForm) -> None:
    call = written(form)
    for length in range(call.index("Oslo"), len(call) + 1):
        reader = CallFinder(form, TOOLS)
        found = [part for char in call[:length] for part in reader.push(char)]
        found += [*reader.given_up().push("", final=True), *reader.push("", True, cut=True)]
        assert "".join([part for part in found if isinstance(part, str)]) == "", call[:length]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.family)
def test_arguments_come_while_they_are_written(form: CallForm) -> None:
    reader, call = CallFinder(form, TOOLS), written(form, city="Oslo and all of its suburbs")
    begun = [part for char in call[: call.index(" suburbs")] for part in reader.push(char)]
    assert [(name, arguments) for name, arguments, _ in joined(begun)] == [
        ("f", '{"city": ' + ('"Oslo and all of its' if form is not forms.GEMMA else ""))
    ]
    assert len(begun) > (1 if form is forms.GEMMA else 19) and reader.given_up().held == ""
    assert reader.push("", final=True) == [
        ToolCall("f", "".join(part.arguments for part in begun))  # type: ignore[union-attr]
    ]


def test_arguments_come_in_a_bounded_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part reads the call from its beginning."""
    reads = 0

    def read(*given: Any) -> Any:
        nonlocal reads
        reads += 1
        return forms.HERMES.read(*given)

    counted = replace(forms.HERMES, read=read)
    assert find(counted, list(written(counted, city="x" * 4000)))[1]
    assert reads < 500


pieces = st.sampled_from(
    ["a", " ", "\n", "<", "[", "{", "}", "]", '"', "f", ",", '{"name": "f", "arguments": {}}',
     '{"name": "h"}', '{"city": "Oslo"}', "\u00e9", "</", "<|", ">"],
)  # fmt: skip


@given(st.sampled_from(FORMS), st.data())
def test_any_cut_gives_the_same(form: CallForm, data: st.DataObject) -> None:
    parts = st.one_of(
        pieces,
        st.sampled_from([*form.marks, *form.first, form.begin, form.end]),
        st.sampled_from([written(form), written(form, "g"), written(form, "h")]),
    )
    text = "".join(data.draw(st.lists(parts, max_size=8)))
    places = data.draw(st.sets(st.integers(0, 200)))
    edges = [0, *sorted(place for place in places if place < len(text)), len(text)]
    cut = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    whole = find(form, [text])
    assert find(form, cut) == find(form, list(text)) == whole
    if not whole[1]:
        assert whole[0] == text


@given(st.sampled_from(FORMS), st.text("ab \n<[{}]>\"'", max_size=40))
@example(forms.HERMES, " \n")
def test_an_answer_without_calls_is_left_alone(form: CallForm, text: str) -> None:
    assert find(form, list(text)) == (text, [])


@given(
    st.sampled_from([form for form in FORMS if form.parameter is None]),
    st.text(max_size=30),
)
def test_any_text_may_be_an_argument(form: CallForm, city: str) -> None:
    _, (call,) = find(form, list(written(form, city=city)))
    assert json.loads(call.arguments) == {"city": city}


MISTRAL_ID = '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"city": "Oslo"}'
SPOKEN = [
    (forms.HERMES, "<tool_call>{'name': 'f'}</tool_call>", None),
    (forms.HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None),
    (forms.HERMES, '<tool_call>{"name": "f", "arguments": NaN}</tool_call>', None),
    (forms.HERMES, '<tool_call>{"name": "f"}</tool_call>', ToolCall("f", "{}")),
    (forms.HERMES, '<tool_call>{"name": "f", "arguments": "{\\"city\\": \\"Oslo\\"}"}', CALL),
    (forms.HERMES, '<tool_call>{"function": {"name": "f", "arguments": {"city": "Oslo"}}}', CALL),
    (forms.HERMES, "<tool_call>" + '{"a":' * 5000 + "1" + "}" * 5000, None),
    (
        forms.HERMES,
        '<tool_call>{"name": "f", "arguments": {"city": "\\ud800"}}',
        ToolCall("f", '{"city": "\\ud800"}'),
    ),
    (forms.QWEN_XML, "<function=f>\n<parameter=n>\n3\n</parameter>\n</function>",
     ToolCall("f", '{"n": 3}')),
    (forms.QWEN_XML, "<function=f>\n<parameter=city>\n3\n</parameter>\n</function>",
     ToolCall("f", '{"city": "3"}')),
    (forms.QWEN_XML, "<function=g>\n<parameter=x>\nTrue\n</parameter>\n</function>",
     ToolCall("g", '{"x": true}')),
    (forms.QWEN_XML, "<function=g>\n<parameter=x>\na\n\nb\n\n</parameter>\n</function>",
     ToolCall("g", '{"x": "a\\n\\nb\\n"}')),
    (forms.QWEN_XML, "<function=f>well</function>", None),
    (forms.MISTRAL_NAMED, '[TOOL_CALLS]f{"city": "Oslo"}', CALL),
    (forms.MISTRAL_NAMED, MISTRAL_ID, ToolCall("f", '{"city": "Oslo"}', "abcdefghi")),
    (forms.MISTRAL_LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {"city": "Oslo"}, "id": "x"}]',
     CALL),
    (forms.HERMES, f'<tool_call>{{"id": "{"x" * 90}", "name": "f", "arguments": {{}}}}',
     ToolCall("f", "{}", "x" * 64)),
    (forms.LLAMA, '<|python_tag|>{"name": "f", "parameters": {"city": "Oslo"}}', CALL),
    (forms.LLAMA, '{"type": "function", "name": "f", "parameters": {"city": "Oslo"}}', CALL),
    (forms.LLAMA, 'So: {"name": "f", "parameters": {}}', None),
    (forms.LLAMA, '{"name": "Ada", "age": 3}', None),
    (forms.HARMONY, 'to=functions.f <|constrain|>json<|message|>{"city": "Oslo"}', CALL),
    (forms.HARMONY, 'to=functions.f<|channel|>commentary json<|message|>{"city": "Oslo"}', CALL),
    (forms.GEMMA, '<|tool_call>call:f{city:<|"|>a{b}<|"|>,n: 3,x:[true,{y:null}]}<tool_call|>',
     ToolCall("f", '{"city": "a{b}", "n": 3, "x": [true, {"y": null}]}')),
    (forms.GEMMA, '<|tool_call>call:g{a:b,3:4}', ToolCall("g", '{"a": "b", "3": 4}')),
    (forms.GEMMA, '<|tool_call>call:g{<|"|>a<|"|>:{}}', ToolCall("g", '{"a": {}}')),
    (forms.GEMMA, "<|tool_call>call:g{a b}", ToolCall("g", '{"a b"}')),
    (forms.KIMI, '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"city": "Oslo"}',
     ToolCall("f", '{"city": "Oslo"}', "functions.f:0")),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "call"), SPOKEN, ids=lambda value: "")
def test_calls_as_models_write_them(form: CallForm, text: str, call: ToolCall | None) -> None:
    expected = ("", [call]) if call else (text, [])
    assert find(form, [text]) == find(form, list(text)) == expected
    ids = {each.id for pieces in ([text], list(text)) for each in find(form, pieces)[1]}
    assert ids == {call.id} if call and not call.id.startswith("call_") else len(ids) in (0, 2)


HEAD = '{"name": "f", "arguments": '
BRACES = [
    f'{{{HEAD}{{"city": "Oslo"}}}}}}',  # as the template of Qwen2.5-Coder shows a call
    f'{{{HEAD}{{"city": "Oslo"}}}}}}}}',
    f'{{{HEAD}{{"city": "Oslo"}}}}',
    f'{HEAD}{{"city": "Oslo"}}}}}}',
    f'{HEAD}{{"city": "Oslo"}}}} }}\n}}',
    f'{HEAD}{{"city": "Oslo"}}',
    f'{{{HEAD}{{{{"city": "Oslo"}}}}}}}}',
    f'{{{HEAD}{{{{"city": "Oslo"}}}}}}',
    '{{"arguments": {"city": "Oslo"}, "name": "f"}}',
]


@pytest.mark.parametrize("text", BRACES)
@pytest.mark.parametrize("around", ["", "<tool_call>\n{}\n</tool_call>", "```json\n{}\n```"])
def test_a_call_with_miscounted_braces_is_a_call(text: str, around: str) -> None:
    if around.startswith("```") and text.count("{") > text.count("}"):
        return  # where the object ends is not known
    text = around.replace("{}", text) or text
    assert find(forms.HERMES, [text]) == find(forms.HERMES, list(text)) == ("", [CALL])
    if around.startswith("<"):
        assert find(forms.HERMES, [f"{text}\n{text} So"]) == (" So", [CALL, CALL])


@pytest.mark.parametrize(
    "text", ["{{1}}", '{{"name": "h"}}', '{{"name": "f", "arguments": {}}} So', "{{", "}}"]
)
def test_doubled_braces_of_no_call_are_text(text: str) -> None:
    assert find(forms.HERMES, [text]) == find(forms.HERMES, list(text)) == (text, [])


def test_a_bare_call_may_have_line_breaks_in_its_texts() -> None:
    arguments = '{"city": "a\nb"}'
    call = ToolCall("f", arguments)
    assert find(forms.HERMES, [f"{HEAD}{arguments}}}"]) == ("", [call])
    assert find(forms.HERMES, [f"{HEAD}{arguments}, 1}}"])[1] == []


@pytest.mark.parametrize("depth", [*range(90, 110), *range(900, 1000)])
def test_arguments_are_read_as_deep_as_they_can_be_written(depth: int) -> None:
    arguments = '{"a": ' * depth + "1" + "}" * depth
    text, calls = find(forms.HERMES, [f'<tool_call>{{"arguments": {arguments}, "name": "f"}}'])
    assert [call.arguments for call in calls] == ([] if text else [arguments])
    assert bool(calls) is (depth < 99)  # of 100, the call and the number counted
    (tagged,) = find(forms.QWEN_XML, [_tagged(arguments)])[1]
    assert json.loads(tagged.arguments).keys() == {"x"}


def _tagged(value: str) -> str:
    return f"<function=g>\n<parameter=x>\n{value}\n</parameter>\n</function>"


def test_a_list_of_calls_ends_before_an_unknown_tool() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "h", "arguments": {}}]'
    rest = ', {"name": "h", "arguments": {}}]'
    assert find(forms.MISTRAL_LIST, list(text)) == find(forms.MISTRAL_LIST, [text])
    assert find(forms.MISTRAL_LIST, [text]) == (rest, [ToolCall("f", "{}")])


def test_text_behind_a_call_is_said() -> None:
    text = f"{written(forms.HERMES)}\n\nDone.\n"
    assert find(forms.HERMES, list(text)) == ("\n\nDone.\n", [CALL])
    assert find(forms.HERMES, [text]) == ("\n\nDone.\n", [CALL])


def test_a_call_comes_once_it_is_complete_and_the_text_before_it_at_once() -> None:
    reader = CallFinder(forms.HERMES, TOOLS)
    assert reader.push("AnswerStyle: <tool") == ["AnswerStyle:"]
    assert reader.push('_call>{"name": "f", "argu') == []
    assert reader.push('ments": {"city": "Oslo"}}')[-1] == CALL
    assert reader.push("\n</tool_call>") == []
    assert reader.held == ""


def test_a_call_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "MAX_CALL", 100)
    long, short = written(forms.HERMES, city="x" * 90), written(forms.HERMES)
    said, calls = find(forms.HERMES, [long])
    assert find(forms.HERMES, list(long)) == (said, calls)
    begun = calls[0].arguments + said
    assert long.endswith(begun) and len(said) == len(long) - 100
    assert find(forms.HERMES, list(short)) == ("", [CALL])


def test_marks_that_open_nothing_are_looked_at_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is read to the end of the answer: many of them would take the square of its length."""
    monkeypatch.setattr(finder, "MAX_MISSES", 3)
    call, miss = written(forms.HERMES), "<tool_call>{'no'}"
    assert find(forms.HERMES, list(miss * 2 + call)) == (miss * 2, [CALL])
    text = miss * 3 + call
    assert find(forms.HERMES, list(text)) == find(forms.HERMES, [text]) == (text, [])


def test_what_is_held_back_can_be_had_as_text() -> None:
    reader = CallFinder(forms.HERMES, TOOLS)
    begun = 'So\n<tool_call>\n{"name": "f", "arguments": '
    assert reader.push(begun) == ["So"]
    assert reader.given_up().push("", final=True) == [begun[2:]]
    assert reader.push('{"city": "Oslo"}')[-1] == CALL
    assert reader.given_up().push("", final=True) == []


MARKS = (
    "</parameter>", "</arg_value>", "</", "<tool_call>", "</tool_call>", "<function=f>", "}", '"',
    "</｜DSML｜parameter>", "\\", "{", "]", "x", "\n  y\n", "é", "<|tool_call_end|>",
)  # fmt: skip


@given(
    st.sampled_from([form for form in FORMS if form.begin]),
    st.lists(st.sampled_from(MARKS), max_size=9),
    st.integers(1, 9),
)
def test_what_stands_in_a_call_reaches_the_client_whole(
    form: CallForm, pieces: list[str], size: int
) -> None:
    text = "".join(pieces)
    if form.parameter is not None:
        text = text.strip("\n")
        closing = form.parameter[1].strip()
        rest = text.partition(closing)[2].lstrip()
        assume(not (closing in text and rest.startswith(("<", "</"))))
        assume(not text.endswith(closing))
    schema = {"properties": {"a": {"type": "string"}}, "additionalProperties": False}
    tools = (Tool("f", schema, {}),)
    calls = [("f", {"a": text})]
    finder = CallFinder(form, tools)
    said = forms.written(form, *calls[0])
    found = [part for at in range(0, len(said), size) for part in finder.push(said[at : at + size])]
    found += finder.push("", final=True)
    whole = [part for part in found if isinstance(part, ToolCall)]
    assert [(call.name, json.loads(call.arguments)) for call in whole] == calls
    streamed = [part.arguments for part in found if isinstance(part, ToolCallDelta)]
    assert "".join(streamed) == whole[0].arguments
    assert "".join([part for part in found if isinstance(part, str)]).strip() == ""


@pytest.mark.parametrize("size", [1, 7, 999])
@pytest.mark.parametrize("blank", ["", "\n"])
@pytest.mark.parametrize("form", [f for f in FORMS if f.parameter], ids=lambda form: form.family)
def test_a_doubled_closing_mark_loses_nothing(form: CallForm, blank: str, size: int) -> None:
    values = {"a": "x", "n": 3, "b": "y"}
    texts = {name: {"type": "string"} for name in "ab"}
    tools = (Tool("f", {"properties": {**texts, "n": {"type": "integer"}}}, {}),)
    tag = form.parameter[1].strip() if form.parameter else ""
    once = forms.written(form, "f", values)
    places = [at for at in range(len(once)) if once.startswith(tag, at)]
    doubled = [f"{once[:at]}{tag}{blank}{once[at:]} Done." for at in places]
    cdata = [each.replace(">x<", "><![CDATA[x]]><") for each in doubled if form.family == "MiniMax"]
    for said in (*doubled, *cdata):
        finder = CallFinder(form, tools)
        found = [p for i in range(0, len(said), size) for p in finder.push(said[i : i + size])]
        found += finder.push("", final=True)
        (call,) = [part for part in found if isinstance(part, ToolCall)]
        assert json.loads(call.arguments) == values
        streamed = [part.arguments for part in found if isinstance(part, ToolCallDelta)]
        assert "".join(streamed) == call.arguments
        assert "".join([part for part in found if isinstance(part, str)]) == " Done."


@pytest.mark.parametrize("size", [1, 7, 999])
def test_broken_json_ends_at_the_closing_mark(size: int) -> None:
    broken = '{"a": "say "hi}'
    said = f'<tool_call>\n{{"name": "f", "arguments": {broken}}}\n</tool_call>\n'
    said += '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    finder = CallFinder(forms.HERMES, (Tool("f", {}, {}),))
    found = [part for at in range(0, len(said), size) for part in finder.push(said[at : at + size])]
    found += finder.push("", final=True)
    assert [part.arguments for part in found if isinstance(part, ToolCall)] == [broken, "{}"]
    deltas = "".join([part.arguments for part in found if isinstance(part, ToolCallDelta)])
    assert deltas == broken + "{}" and not any(isinstance(part, str) for part in found)

"""Chat templates of llama.cpp by name, read off what it writes."""

import pytest

from localspec.chat.message import read_messages
from localspec.chat.templates.template import ChatTemplate
from localspec.llama.builtin_templates import builtin_names, builtin_template

pytestmark = pytest.mark.llama
HEAD = "<|start_header_id|>{}<|end_header_id|>\n\n"
TALK = (
    ("system", "Be kind."), ("user", "Say \"hi\""), ("assistant", "hi"), ("user", "ok {{ 1 }}"),
)  # fmt: skip


def test_a_known_name_renders_as_llama_cpp_does() -> None:
    source = builtin_template("llama3")
    assert source is not None
    messages = read_messages([{"role": role, "content": text} for role, text in TALK])
    text, _ = ChatTemplate(source).begin(messages)
    turns = "".join(f"{HEAD.format(role)}{text}<|eot_id|>" for role, text in TALK)
    assert text == turns + HEAD.format("assistant")


def test_what_is_not_a_text_around_each_message_is_no_template_of_ours() -> None:
    names = builtin_names()
    assert {"chatml", "llama3", "command-r", "zephyr"} <= {*names}
    for other in ("llama2", "gemma", "no-such-name", ""):  # the first two put texts together
        assert builtin_template(other) is None and other not in names

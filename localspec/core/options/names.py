"""Names of options in Python: those of other libraries, and flags of messages as arguments."""

import json
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache

from localspec.core.errors import LocalspecError, UsageError
from localspec.core.options.load_options import LoadOptions, RopeOptions
from localspec.core.options.model_options import ModelOptions
from localspec.core.options.option import options
from localspec.core.options.sampling_params import SamplingParams

# Names in llama-cpp-python, vLLM, mlx-lm, transformers and Ollama that are no flags of ours.
_OTHERS = {
    word: ours
    for words, ours in (
        ("n_ctx num_ctx max_model_len", "ctx_size"),
        ("n_threads", "threads"),
        ("n_threads_batch", "threads_batch"),
        ("n_batch", "batch_size"),
        ("n_ubatch", "ubatch_size"),
        ("flash_attn", "flash_attention"),
        ("type_k", "cache_type_k"),
        ("type_v", "cache_type_v"),
        ("use_mmap", "mmap"),
        ("use_mlock", "mlock"),
        ("lora_path", "loras"),
        ("kv_overrides", "override_kv"),
        ("rpc_servers", "rpc"),
        ("model model_path", "target"),
        ("messages", "prompt"),
        ("draft", "draft_tokens"),  # in `Model.generate`: `load` has it
        ("draft_model speculative_config", "draft"),
        ("num_draft_tokens num_speculative_tokens", "draft_tokens"),
        ("num_assistant_tokens num_pred_tokens", "draft_tokens"),
        ("n_predict num_predict max_new_tokens", "max_tokens"),
        ("repetition_penalty", "repeat_penalty"),
        ("response_format guided_json", "json_schema"),
        ("chat_format", "chat_template"),
        ("enable_thinking", "thinking"),
        ("stop_sequences stop_strings", "stop"),
        ("guided_regex", "regex"),
    )
    for word in words.split()
}
# Options of other libraries that are calls here.
_CALLS = {
    "stream": "Model.stream(prompt) gives the pieces of an answer.",
    "n": "Model.generate_many([prompt] * n) gives several answers.",
    "echo": "The prompt is known: print it before the answer.",
    "return_full_text": "The prompt is known: print it before the answer.",
}
# Members of other libraries' models and answers.
_MEMBERS = {
    word: hint
    for words, hint in (
        ("__call__ create_chat_completion create_completion", "generate(prompt)"),
        ("chat complete invoke", "generate(prompt)"),
        ("n_ctx max_model_len", "context_size"),
        ("encode", "tokenize(text)"),
        ("decode", "detokenize(ids)"),
        ("reset", "forget()"),
        ("choices content message_content outputs output_text response", "text, and message"),
        ("usage timings", "stats"),
    )
    for word in words.split()
}
# Flags of the commands whose names or values differ from the arguments.
_FLAGS = {
    "--chat-template": "chat_template",
    "--grammar-file": "grammar",
    "--json-schema": "json_schema",
    "--json-schema-file": "json_schema",
    "--max-tokens": "max_tokens",
    "--no-think": "thinking=False",
    "--kv-unified": "kv_unified=True",
    "--parallel": "parallel",
    "--raw": "raw=True",
    "--think": "thinking=True",
    "--yes": "download_large=True",
}
_DRAFTS = ("auto", "find", "mtp", "off", "self")
# A command line and code stay; a flag may be followed by a value. Commands of a chat are removed.
_MENTION = re.compile(
    r"(?:localspec|ggml-rpc-server) [a-z-].*?(?=[.;,] |$)|`[^`]*`|"
    r"(?P<chat>, or /[a-z]+ \S+ in chat)|"
    r"(?<![\w-])(?P<flag>--[a-z][a-z-]+)(?: (?P<value>[\w.:]*\w))?"
)
_VALUE = re.compile(r"[A-Z]{3,}[\w.:]*|\d[\d.:]*")


def unknown_option(
    name: str, known: Collection[str], place: str, elsewhere: Collection[str]
) -> UsageError:
    """The error for an option that is none of ``known``; ``place`` takes those ``elsewhere``."""
    flag = f"--{name.replace('_', '-')}"
    meant = _OTHERS.get(name) or _arguments().get(flag, (name,))[0].partition("=")[0]
    near = get_close_matches(name, sorted(known), 1)
    if meant in known:
        hint = f"It is {meant} here."
    elif name in _CALLS:
        hint = _CALLS[name]
    elif meant in elsewhere:
        hint = f"It is an option of {place}: {meant}."
    else:
        similar = f"Did you mean {near[0]}? " if near else ""
        hint = f"{similar}Options are: {', '.join(sorted(known))}."
    return UsageError(f"There is no option {name}.", hint)


def member_here(name: str) -> str:
    """The name here of a member of another library's model or answer, in a sentence; else ""."""
    return f"It is {_MEMBERS[name]} here." if name in _MEMBERS else ""


def in_python(text: str) -> str:
    """A sentence with the library's arguments in place of the commands' flags."""
    return _MENTION.sub(_written, text)


def reword(error: LocalspecError) -> None:
    error.message, error.hint = in_python(error.message), in_python(error.hint)
    error.args = (error.message,)


def _written(found: re.Match[str]) -> str:
    """The library's argument for a matched flag and its value; other text is unchanged."""
    if found["chat"]:
        return ""
    flag, value = found["flag"], found["value"]
    name, words = _arguments().get(flag or "", (None, ()))
    if name is None:
        return found[0]
    if value is None or "=" in name or not (value in words or _VALUE.fullmatch(value)):
        return found[0].replace(flag, name)
    if name == "draft" and value.isdecimal():
        name = "draft_tokens"  # the argument of an answer
    return f"{name}={value if re.fullmatch(r'[0-9.]+', value) else json.dumps(value)}"


@cache
def _arguments() -> Mapping[str, tuple[str, Collection[str]]]:
    """The arguments of the library by flag, and words that may be values; a switch has its own."""
    found = dict[str, tuple[str, Collection[str]]]()
    for name, row in options(LoadOptions, RopeOptions, ModelOptions, SamplingParams).items():
        switches = row.default is False or any(flag.startswith("--no-") for flag in row.flags)
        written = f"{name}={not row.default}" if switches else name
        found |= dict.fromkeys(row.flags, (written, {*row.choices, *row.words}))
    found |= dict.fromkeys(("--draft", "--draft-model"), ("draft", _DRAFTS))
    return found | {flag: (name, ()) for flag, name in _FLAGS.items()}

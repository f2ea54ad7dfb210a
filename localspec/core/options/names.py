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
    "n_ctx": "ctx_size",
    "num_ctx": "ctx_size",
    "max_model_len": "ctx_size",
    "n_threads": "threads",
    "n_threads_batch": "threads_batch",
    "n_batch": "batch_size",
    "n_ubatch": "ubatch_size",
    "flash_attn": "flash_attention",
    "type_k": "cache_type_k",
    "type_v": "cache_type_v",
    "use_mmap": "mmap",
    "use_mlock": "mlock",
    "lora_path": "loras",
    "kv_overrides": "override_kv",
    "rpc_servers": "rpc",
    "model_path": "target",
    "draft_model": "draft",
    "num_draft_tokens": "draft_tokens",
    "num_speculative_tokens": "draft_tokens",
    "num_assistant_tokens": "draft_tokens",
    "num_pred_tokens": "draft_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "response_format": "json_schema",
    "enable_thinking": "thinking",
}
# Flags of the commands whose names or values differ from the arguments.
_FLAGS = {
    "--grammar-file": "grammar",
    "--max-tokens": "max_tokens",
    "--no-think": "thinking=False",
    "--parallel": "parallel",
    "--raw": "raw=True",
    "--think": "thinking=True",
    "--yes": "download_large=True",
}
# A command line and code stay; a flag may have a value behind it.
_MENTION = re.compile(
    r"localspec [a-z].*?(?=[.;,] |$)|`[^`]*`|"
    r"(?<![\w-])(?P<flag>--[a-z][a-z-]+)"
    r"(?: (?P<value>auto|find|mtp|none|off|self|[A-Z]{3,}[\w.:]*|\d[\d.:]*\b))?"
)


def unknown_option(
    name: str, known: Collection[str], place: str, elsewhere: Collection[str]
) -> UsageError:
    """The error for an option that is none of ``known``, with its name here.

    ``place`` is the function that takes the options ``elsewhere``.
    """
    meant = _OTHERS.get(name) or _arguments().get(f"--{name.replace('_', '-')}") or name
    meant = meant.partition("=")[0]
    near = get_close_matches(name, sorted(known), 1)
    if meant in known:
        hint = f"It is {meant} here."
    elif meant in elsewhere:
        hint = f"It is an option of {place}: {meant}."
    else:
        similar = f"Did you mean {near[0]}? " if near else ""
        hint = f"{similar}Options are: {', '.join(sorted(known))}."
    return UsageError(f"There is no option {name}.", hint)


def in_python(text: str) -> str:
    """A sentence with arguments of the library where it names flags of the commands."""
    return _MENTION.sub(_written, text)


def reword(error: LocalspecError) -> None:
    """Name arguments of the library in an error, and add its hint to the traceback."""
    error.message, error.hint = in_python(error.message), in_python(error.hint)
    error.args = (error.message,)
    if error.hint and error.hint not in getattr(error, "__notes__", ()):
        error.add_note(error.hint)


def _written(found: re.Match[str]) -> str:
    """The library's argument for a matched flag and its value; other text is unchanged."""
    name, value = _arguments().get(found["flag"] or ""), found["value"]
    if name is None:
        return found[0]
    if value is None or "=" in name:
        return found[0].replace(found["flag"], name)
    return f"{name}={value if value.isdecimal() else json.dumps(value)}"


@cache
def _arguments() -> Mapping[str, str]:
    """The arguments of the library by flag; a switch with its value."""
    found = dict[str, str]()
    for name, row in options(LoadOptions, RopeOptions, ModelOptions, SamplingParams).items():
        switches = row.default is False or any(flag.startswith("--no-") for flag in row.flags)
        written = f"{name}={not row.default}" if switches else name
        found |= dict.fromkeys(row.flags, written)
    return found | {"--draft-model": "draft"} | _FLAGS

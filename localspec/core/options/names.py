"""Names of options in Python: those of other libraries, and flags of messages as arguments."""

import json
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from localspec.core.errors import LocalspecError, UsageError
from localspec.core.files import read_toml
from localspec.core.options.load_options import LoadOptions, RopeOptions
from localspec.core.options.model_options import ModelOptions
from localspec.core.options.option import options
from localspec.core.options.sampling_params import SamplingParams

_DRAFTS = ("auto", "find", "mtp", "off", "self")
# A command line and code stay; a flag may be followed by a value. Commands of a chat are removed.
_MENTION = re.compile(
    r"(?:localspec|ggml-rpc-server) [a-z-].*?(?=[.;,] |$)|`[^`]*`|"
    r"(?P<chat>, or /[a-z]+ \S+ in chat)|"
    r"(?<![\w-])(?P<flag>--[a-z][a-z-]+)(?: (?P<value>[\w.:]*\w))?"
)
_VALUE = re.compile(r"[A-Z]{3,}[\w.:]*|\d[\d.:]*")


@cache
def _tables() -> Mapping[str, Mapping[str, str]]:
    return read_toml(Path(__file__).parent / "names.toml")


@cache
def _here(table: str) -> Mapping[str, str]:
    """Our name of each name elsewhere."""
    return {word: ours for ours, words in _tables()[table].items() for word in words.split()}


def unknown_option(
    name: str, known: Collection[str], place: str, elsewhere: Collection[str]
) -> UsageError:
    """The error for an option that is none of ``known``; ``place`` takes those ``elsewhere``."""
    flag = f"--{name.replace('_', '-')}"
    meant = _here("options").get(name) or _arguments().get(flag, (name,))[0].partition("=")[0]
    near = get_close_matches(name, sorted(known), 1)
    if meant in known:
        hint = f"It is {meant} here."
    elif name in _tables()["calls"]:
        hint = _tables()["calls"][name]
    elif meant in elsewhere:
        hint = f"It is an option of {place}: {meant}."
    else:
        similar = f"Did you mean {near[0]}? " if near else ""
        hint = f"{similar}Options are: {', '.join(sorted(known))}."
    return UsageError(f"There is no option {name}.", hint)


def member_here(name: str) -> str:
    """The name here of a member of another library's model or answer, in a sentence; else ""."""
    members = _here("members")
    return f"It is {members[name]} here." if name in members else ""


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
    return found | {flag: (name, ()) for flag, name in _tables()["flags"].items()}

"""The schema of a pair file: what is written reads the same, what is wrong is told in a clause."""

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from typing import get_type_hints

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from localspec.commands.flags.pair import PAIR_ROWS
from localspec.commands.flags.rows import number
from localspec.core.options.option import Bounds, Option
from localspec.core.options.sampling_params import SamplingParams, sampling_fields
from localspec.library.pairs.schema import (
    FileHash,
    PairSettings,
    Setting,
    UserPair,
    as_toml,
    parse_pair,
)

TARGET, DRAFT = "/models/big.gguf", "hf:org/small-GGUF/small-Q8_0.gguf"
SHA = "0123456789abcdef" * 4


def refusal(document: Mapping[str, object]) -> str:
    """The sentence that a clause about the document makes."""
    with pytest.raises(ValueError) as caught:
        parse_pair("mine", document)
    clause = str(caught.value)
    assert clause.isprintable() and not clause.endswith(".")
    return f"{clause}."


def test_what_is_written_reads_the_same() -> None:
    settings: dict[str, Setting] = {"draft_tokens": 4, "temperature": 0.5, "lenient": True}
    settings |= {"seed": -1, "logit_bias": ("5+1", "7-inf"), "dry_sequence_breakers": ('"', "\n")}
    files = (FileHash(TARGET, SHA, 2**40), FileHash("/models/part 2 \U0001f600.gguf", SHA, 0))
    pair = UserPair("mine", TARGET, DRAFT, settings, files)
    assert parse_pair("mine", tomllib.loads(as_toml(pair))) == pair


WRONG_SETTINGS: list[tuple[dict[str, object], str]] = [
    ({"ctx_size": 4}, "settings.ctx_size: expected a whole number from 8 to 2147483647."),
    ({"ctx_size": True}, "settings.ctx_size: expected a whole number"),
    ({"ctx_size": 8.0}, "settings.ctx_size: expected a whole number"),
    ({"ctx_size": [8]}, "settings.ctx_size: expected a whole number"),
    ({"draft_tokens": 63}, 'draft_tokens: expected a whole number from 0 to 62 or "auto" or'),
    ({"draft_tokens": "some"}, "settings.draft_tokens: expected a whole number"),
    ({"flash_attention": 1}, 'settings.flash_attention: expected "auto" or "on" or "off".'),
    ({"cache_type_v": "q9"}, 'settings.cache_type_v: expected "f16" or'),
    ({"lenient": 1}, "settings.lenient: expected true or false."),
    ({"temperature": "hot"}, "settings.temperature: expected a number from 0 to 100."),
    ({"temperature": 101}, "settings.temperature: expected a number from 0 to 100."),
    ({"min_p": float("nan")}, "settings.min_p: expected a number from 0 to 1."),
    ({"logit_bias": "5+1"}, "settings.logit_bias: expected a list of texts."),
    ({"logit_bias": [5]}, "settings.logit_bias: expected a list of texts."),
    ({"logit_bias": ["5+1", "5"]}, "5 is no logit bias."),
    ({"dry_sequence_breakers": ["x" * 41]}, "A sequence breaker has 41 characters."),
    ({"ignore_eos": 1}, "settings.ignore_eos: expected true or false."),
    ({"dry_base": 0.5}, "settings.dry_base: expected a number from 1 to 1000."),
    ({"seed": -2}, "settings.seed: expected a whole number from -1 to 4294967295."),
    ({"acceptance": "maybe"}, 'settings.acceptance: expected "coupled" or "match" or'),
    ({"acceptance": "rejection", "draft_tokens": "auto"}, "the draft length must be fixed"),
    (
        {"context": 8},
        "there is no key settings.context; known are draft_tokens, lenient,",
    ),
    ({"\x1b": 8}, "there is no key settings.\\x1b; known are"),
]


def test_a_setting_that_cannot_be_kept(subtests: pytest.Subtests) -> None:
    for settings, sentence in WRONG_SETTINGS:
        with subtests.test(sentence):
            assert sentence in refusal({"target": TARGET, "draft": DRAFT, "settings": settings})


MODELS = f'target = "{TARGET}"\ndraft = "{DRAFT}"\n'
FILE = f'[[files]]\npath = "/a"\nsha256 = "{SHA}"\nsize = 1\n'


WRONG_DOCUMENTS: list[tuple[str, str]] = [
    ("", "target is missing: expected an absolute path"),
    (f'target = "{TARGET}"', "draft is missing: expected an absolute path"),
    ('target = "big.gguf"\ndraft = "/a"', "target: expected an absolute path"),
    ('target = "/a"\ndraft = "org/repo:Q4"', "draft: expected an absolute path"),
    ('target = "/a"\ndraft = "hf:org"', "draft: expected an absolute path"),
    ('target = "/a"\ndraft = 3', "draft: expected an absolute path"),
    (r'target = "/a\u0000"' + "\ndraft = '/a'", "target: expected an absolute path"),
    (f"{MODELS}name = 'x'", "there is no key name; known are target, draft, settings, files."),
    (f"{MODELS}speed = 3", "there is no key speed; known are target, draft"),
    (f"{MODELS}settings = 3", "settings: expected a table."),
    (f"{MODELS}[settings]\ncontext = 3", "there is no key settings.context; known are"),
    (f"{MODELS}[settings]\ncontext = [3]", "there is no key settings.context; known are"),
    (f"{MODELS}[settings]\nctx_size = '8'", "settings.ctx_size: expected a whole number"),
    (f"{MODELS}[settings]\nctx_size.a = 8", "settings.ctx_size: expected a whole number"),
    (f"{MODELS}[settings]\nctx_size = 2020-01-01", "settings.ctx_size: expected a whole"),
    (f"{MODELS}[settings]\nctx_size = 0x{'f' * 9999}", "settings.ctx_size: expected a whole"),
    (f"{MODELS}[settings]\ntop_p = inf", "settings.top_p: expected a number from 0 to 1."),
    (f"{MODELS}files = 3", "files: expected a list of tables."),
    (f"{MODELS}files = [3]", "files: expected a list of tables."),
    (f"{MODELS}{FILE.replace('/a', 'a')}", "files.path: expected an absolute path."),
    (f"{MODELS}{FILE.replace('f', 'F')}", "there is no key Files"),
    (f"{MODELS}{FILE.replace('abc', 'ABC')}", "files.sha256: expected 64 hexadecimal"),
    (f"{MODELS}{FILE.replace('= 1', '= -1')}", "files.size: expected a whole number of bytes"),
    (f"{MODELS}{FILE.replace('= 1', '= 1.5')}", "files.size: expected a whole number of"),
    (f"{MODELS}{FILE}date = 3", "there is no key files.date; known are path, sha256, size."),
    (f"{MODELS}[[files]]\npath = '/a'", "files.sha256 is missing: expected 64 hex"),
]


def test_a_wrong_document_is_told(subtests: pytest.Subtests) -> None:
    for text, sentence in WRONG_DOCUMENTS:
        with subtests.test(sentence):
            message = refusal(tomllib.loads(text))
            assert sentence in message
            assert len(message) < 900


STORED = [row for row in PAIR_ROWS.values() if row.stored and row.bounds and row.item is int]


@pytest.mark.parametrize("row", STORED, ids=[row.name for row in STORED])
def test_a_pair_keeps_what_its_flag_takes(row: Option) -> None:
    least, most = row.asked or row.bounds or Bounds(0, 0)
    parse = number(Bounds(least, most), row.words)
    assert [parse(str(value)) for value in (least, most)] == [least, most]
    assert parse(f" +{most}") == most
    with pytest.raises(typer.BadParameter):
        parse(str(most + 1))
    for value in (least, most):
        document = {"target": TARGET, "draft": DRAFT, "settings": {row.name: value}}
        assert parse_pair("mine", document).settings == {row.name: value}
    for value in (least - 1, most + 1):
        document = {"target": TARGET, "draft": DRAFT, "settings": {row.name: value}}
        assert f"{row.name}: expected a whole number from {least} to {most}." in refusal(document)


def test_starting_imports_no_pydantic() -> None:
    code = "import sys, localspec.cli; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_are_named_as_in_config() -> None:
    assert set(sampling_fields()) <= get_type_hints(PairSettings).keys()
    defaults = asdict(SamplingParams())
    pair = UserPair("mine", TARGET, DRAFT, defaults)
    assert parse_pair("mine", tomllib.loads(as_toml(pair))) == pair


texts = st.text(st.characters(exclude_categories=["Cs"]))
values = (
    texts
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.lists(texts, max_size=3).map(tuple)
)


@given(values)
def test_toml_is_written_so_that_it_reads_the_same(value: Setting) -> None:
    written = as_toml(UserPair("mine", TARGET, "mtp", {"x": value}))
    read = tomllib.loads(written)["settings"]["x"]
    read = tuple(read) if isinstance(read, list) else read
    assert read == value and type(read) is type(value)


@given(st.text(max_size=12), st.dictionaries(texts, values | st.none(), max_size=3))
def test_a_file_of_nonsense_is_told_in_one_sentence(
    extra: str, settings: dict[str, Setting | None]
) -> None:
    document = {"target": TARGET, "draft": "/" + extra, "settings": settings}
    try:
        pair = parse_pair("mine", document)
    except ValueError as error:
        assert str(error).isprintable() and "expected" in str(error) or "no " in str(error)
    else:
        written = tomllib.loads(as_toml(pair))
        assert parse_pair("mine", written).settings == settings

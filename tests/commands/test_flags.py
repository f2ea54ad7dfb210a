"""Flags: every option named and explained, and turned into the parameters it stands for."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.loading import LoadingFlags
from localspec.commands.flags.models import ModelFlags
from localspec.commands.flags.sampling import SamplingFlags
from localspec.core.config import MAX_DRAFT_TOKENS, DraftOptions, LoadOptions
from localspec.core.errors import UsageError
from localspec.core.sampling_choice import choose_sampling
from localspec.core.sampling_params import SamplingParams

TARGET, DRAFT = Path("big.gguf"), Path("small.gguf")


Parsed = tuple[ModelFlags, LoadingFlags, SamplingFlags, str]


def parsed(*arguments: str) -> Parsed:
    """The groups as a command receives them."""
    received: list[Parsed] = []
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    @spread_groups
    def command(
        models: ModelFlags,
        loading: LoadingFlags,
        sampling: SamplingFlags,
        word: Annotated[str, typer.Option("--word")] = "none",
    ) -> None:
        received.append((models, loading, sampling, word))

    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return received[0]


def refusal(*arguments: str) -> str:
    with pytest.raises(AssertionError) as caught:
        parsed(*arguments)
    return str(caught.value)


def test_every_flag_is_explained_and_grouped() -> None:
    spellings: list[str] = []
    for group in (ModelFlags, LoadingFlags, SamplingFlags):
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            (option,) = hints[field.name].__metadata__
            assert option.help and option.help.rstrip().endswith("."), field.name
            spellings += option.param_decls
            if field.name not in ("target", "verbose"):
                assert option.rich_help_panel in ("Drafting", "Loading", "Sampling"), field.name
    assert len(spellings) == len(set(spellings))


def test_nothing_given_means_nothing_decided() -> None:
    models, loading, sampling, word = parsed()
    assert (models, loading, sampling, word) == (
        ModelFlags(), LoadingFlags(), SamplingFlags(), "none",
    )  # fmt: skip
    assert set(sampling.given().values()) == {None}
    assert set(sampling.given()) == {field.name for field in fields(SamplingParams)}
    assert models.draft_options() == DraftOptions()


def test_llama_cpps_spellings_are_understood() -> None:
    models, loading, sampling, word = parsed(
        *("-m", "big.gguf", "-md", "small.gguf", "-c", "64", "-cd", "32", "-t", "3", "-td", "2"),
        *("-tb", "4", "-ngl", "5", "-ngld", "6", "-dev", "none", "-devd", "cpu", "-ncmoe", "7"),
        *("-ot", "a=CPU", "-ot", "b=CPU", "--mlock", "-fa", "on", "-ctk", "q8_0", "-ctv", "q4_0"),
        *("--exact", "-v", "--draft", "5", "--temp", "0.5", "--top-k", "9", "--top-p", "0.8"),
        *("--min-p", "0.1", "--repeat-penalty", "1.1", "--repeat-last-n", "-1", "-s", "8"),
        *("--typical", "0.9", "--top-nsigma", "1.5", "--xtc-probability", "0.5"),
        *("--xtc-threshold", "0.2", "--dynatemp-range", "0.4", "--dynatemp-exp", "1.5"),
        *("--presence-penalty", "0.3", "--frequency-penalty", "-0.2", "--dry-multiplier", "0.8"),
        *("--dry-base", "2", "--dry-allowed-length", "3", "--dry-penalty-last-n", "128"),
        *("--dry-sequence-breaker", r"\n", "--dry-sequence-breaker", "a b", "--ignore-eos"),
        *("-l", "5-inf", "--logit-bias", "7+1.5", "--acceptance", "match", "--word", "given"),
    )
    shared: dict[str, Any] = {
        "mlock": True, "flash_attention": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0",
    }  # fmt: skip
    target, draft = loading.load_options(TARGET, DRAFT)
    assert target == LoadOptions(
        TARGET, ctx_size=64, gpu_layers=5, threads=3, threads_batch=4, device="none",
        cpu_moe_layers=7, override_tensors=("a=CPU", "b=CPU"), exact=True, **shared,
    )  # fmt: skip
    assert draft == LoadOptions(
        DRAFT, ctx_size=32, gpu_layers=6, threads=2, threads_batch=2, device="cpu", **shared
    )
    assert models.draft_options() == DraftOptions(str(DRAFT), (5,))
    assert models.verbose
    assert choose_sampling(sampling.given(), {}).params == SamplingParams(
        temperature=0.5, top_k=9, top_p=0.8, min_p=0.1, typical_p=0.9, top_n_sigma=1.5,
        xtc_probability=0.5, xtc_threshold=0.2, dynatemp_range=0.4, dynatemp_exp=1.5,
        repeat_penalty=1.1, repeat_last_n=-1, presence_penalty=0.3, frequency_penalty=-0.2,
        dry_multiplier=0.8, dry_base=2, dry_allowed_length=3, dry_penalty_last_n=128,
        dry_sequence_breakers=("\n", "a b"), logit_bias=("5-inf", "7+1.5"), ignore_eos=True,
        seed=8, acceptance="match",
    )  # fmt: skip
    assert word == "given"


def test_other_spellings_of_llama_cpp() -> None:
    _, _, sampling, _ = parsed(
        *("--typical-p", "0.9", "--top-n-sigma", "1.5", "--temperature", "0.5", "--seed", "-1")
    )
    given = {name: value for name, value in sampling.given().items() if value is not None}
    assert given == {"typical_p": 0.9, "top_n_sigma": 1.5, "temperature": 0.5, "seed": -1}


def test_the_draft_follows_the_target() -> None:
    _, loading, _, _ = parsed(
        *("-m", "big.gguf", "--draft", "small.gguf", "-c", "64", "-t", "3", "-tb", "4"),
        *("-dev", "none", "-ngl", "5", "-ncmoe", "7", "-ot", "a=CPU"),
    )
    draft = loading.load_options(TARGET, DRAFT)[1]
    # Layers on the GPU and tensor patterns count for one model only.
    assert draft == LoadOptions(DRAFT, threads=3, threads_batch=4, device="none")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), DraftOptions()),
        (("--draft", "small.gguf"), DraftOptions(str(DRAFT))),
        (("--draft", "4"), DraftOptions(None, (4,))),
        (("--draft", "auto"), DraftOptions(None, ("auto",))),
        (("--draft", "off"), DraftOptions(None, (0,))),
        (("--draft", "0,2,auto"), DraftOptions(None, (0, 2, "auto"))),
        (("--draft", "small.gguf", "--draft", "4"), DraftOptions(str(DRAFT), (4,))),
        (("--draft", "4", "--draft", "small.gguf"), DraftOptions(str(DRAFT), (4,))),
        (("--draft-model", "auto", "--draft-tokens", "4"), DraftOptions("auto", (4,))),
        (("-md", "off", "--draft", "./4"), "Two draft models"),
        (("--draft", "3", "--draft-tokens", "4"), "Two draft lengths"),
        (("--draft", "a.gguf", "--draft", "b.gguf"), "Two draft models"),
        (("--draft-tokens", "many"), "is no draft length"),
        (("--draft", str(MAX_DRAFT_TOKENS + 1)), "what we verify"),
    ],
)
def test_draft_is_a_model_or_a_length(
    arguments: tuple[str, ...], expected: DraftOptions | str
) -> None:
    models, _, _, _ = parsed(*arguments)
    if isinstance(expected, DraftOptions):
        assert models.draft_options() == expected
        return
    with pytest.raises(UsageError, match=expected):
        models.draft_options()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-ctk", "f8"), "'f8' is not one of f16"),
        (("-fa", "maybe"), "'maybe' is not one of auto, on, off"),
        (("-c", "7"), "greater than or equal"),
        (("-c", str(2**32 + 512)), "less than or equal"),
        (("-t", "0"), "greater than or equal"),
        (("-ngl", "-1"), "greater than or equal"),
        (("--top-k", "many"), "valid"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[str, ...], words: str) -> None:
    refused = " ".join(refusal(*arguments).replace("│", " ").split())
    assert words in refused and "Invalid value" in refused

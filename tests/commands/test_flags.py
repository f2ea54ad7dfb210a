"""Flags: every option named and explained, and turned into the parameters it stands for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from localspec import cli
from localspec.commands.flags.answer import AnswerFlags
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.kept import FlagGroups, kept_settings, settle, unkept_flags
from localspec.commands.flags.loading import LoadingFlags
from localspec.commands.flags.models import ModelFlags
from localspec.commands.flags.placement import AUTO_LAYERS
from localspec.commands.flags.prompt import PromptFlags
from localspec.commands.flags.sampling import SamplingFlags
from localspec.commands.flags.spellings import complete
from localspec.commands.flags.template import TemplateFlags
from localspec.core.config import (
    ALL_LAYERS,
    MAX_DRAFT_TOKENS,
    Branches,
    DraftOptions,
    KeyValue,
    LoadOptions,
    Lora,
    RopeOptions,
    RpcServer,
    RpcServers,
)
from localspec.core.errors import UsageError
from localspec.core.sampling_choice import choose_sampling
from localspec.core.sampling_params import SamplingParams

TARGET, DRAFT = Path("big.gguf"), Path("small.gguf")
PANELS = (
    "Prompt and answer",
    "Thinking and chat template",
    "Grammar",
    "Drafting",
    "Lookup",
    "Sampling",
    "Penalties and biases",
    "Loading",
    "Devices",
    "Rope and adapters",
)
GROUPS = (
    PromptFlags,
    AnswerFlags,
    TemplateFlags,
    GrammarFlags,
    ModelFlags,
    SamplingFlags,
    LoadingFlags,
)


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
    for group in GROUPS:
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            (option,) = hints[field.name].__metadata__
            assert option.help and option.help.rstrip().endswith("."), field.name
            spellings += option.param_decls or []  # an argument has none
            if field.name not in ("prompt", "target", "verbose"):
                assert option.rich_help_panel in PANELS, field.name
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("command", ["run", "chat"])
def test_help_begins_with_what_is_wanted_most(command: str) -> None:
    help_text = CliRunner().invoke(cli.app, [command, "--help"]).output
    assert tuple(re.findall(r"─ ([A-Z][\w ]+) ─", help_text)) == ("Arguments", "Options", *PANELS)
    options = typer.main.get_command(cli.app).commands[command].params  # type: ignore[attr-defined]
    sizes = Counter(getattr(option, "rich_help_panel", None) for option in options)
    assert max(sizes.values()) < 16


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


def test_the_draft_has_caches_and_tensors_of_its_own() -> None:
    _, loading, _, _ = parsed("-ctk", "q8_0", "-ctkd", "q4_0", "-ctvd", "f32", "-otd", "a=CPU")
    target, draft = loading.load_options(TARGET, DRAFT)
    assert target == LoadOptions(TARGET, cache_type_k="q8_0")
    assert draft == LoadOptions(
        DRAFT, cache_type_k="q4_0", cache_type_v="f32", override_tensors=("a=CPU",)
    )


@pytest.mark.parametrize("flag", ["-ngl", "-ngld"])
@pytest.mark.parametrize(
    ("text", "layers"), [("auto", None), ("-1", None), ("all", ALL_LAYERS), ("-2", ALL_LAYERS)]
)
def test_layers_as_llama_cpp_names_them(flag: str, text: str, layers: int | None) -> None:
    target, draft = parsed(flag, text)[1].load_options(TARGET, DRAFT)
    assert draft is not None
    assert (target if flag == "-ngl" else draft).gpu_layers == layers


@pytest.mark.parametrize(
    ("arguments", "batches"),
    [
        ((), (512, 512)),
        (("-b", "2048"), (2048, 512)),
        (("-b", "128"), (128, 128)),
        (("-ub", "1024"), (1024, 1024)),
        (("-ub", "128"), (512, 128)),
        (("-b", "2048", "-ub", "64"), (2048, 64)),
    ],
)
def test_one_batch_size_follows_the_other(
    arguments: tuple[str, ...], batches: tuple[int, int]
) -> None:
    for options in parsed(*arguments)[1].load_options(TARGET, DRAFT):
        assert options is not None and (options.batch_size, options.ubatch_size) == batches


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-b", "64", "-ub", "128"), "more than --batch-size"),
        (("--rope-scale", "2", "--rope-freq-scale", "0.5"), "two names of one value"),
    ],
)
def test_flags_that_contradict_each_other(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parsed(*arguments)[1].load_options(TARGET, None)


def test_what_changes_a_model_is_for_the_target() -> None:
    _, loading, _, _ = parsed(
        *("--rope-scaling", "yarn", "--rope-scale", "4", "--rope-freq-base", "1e6"),
        *("--yarn-orig-ctx", "4096", "--yarn-ext-factor", "0.5", "--yarn-attn-factor", "2"),
        *("--yarn-beta-slow", "1.5", "--yarn-beta-fast", "32", "--lora", "a.gguf"),
        *("--lora-scaled", "b:c.gguf:0.5", "--override-kv", "x.y=int:-3", "--no-mmap"),
    )
    target, draft = loading.load_options(TARGET, DRAFT)
    replaced = (KeyValue("x.y", -3),)
    assert target == LoadOptions(
        TARGET, mmap=False, override_kv=replaced,
        rope=RopeOptions("yarn", 1e6, 0.25, 4096, 0.5, 2, 1.5, 32),
        loras=(Lora(Path("a.gguf"), 1.0), Lora(Path("b:c.gguf"), 0.5)),
    )  # fmt: skip
    assert target.resident
    assert draft == LoadOptions(DRAFT, mmap=False, override_kv=replaced)


def test_shares_count_the_devices_of_a_model() -> None:
    shares = ("-ts", "3/1", "-sm", "row", "-mg", "1")
    target, draft = parsed(*shares)[1].load_options(TARGET, DRAFT)
    assert target == LoadOptions(TARGET, tensor_split=(3, 1), split_mode="row", main_gpu=1)
    assert draft == replace(target, path=DRAFT)
    draft = parsed(*shares, "-devd", "CUDA1")[1].load_options(TARGET, DRAFT)[1]
    assert draft == LoadOptions(DRAFT, device="CUDA1")


def test_rpc_servers_are_the_targets() -> None:
    servers = RpcServers([RpcServer("10.0.0.2", 50052), RpcServer("worker", 7)])
    given = ("--rpc", "10.0.0.2:50052,worker:7", "--trust-rpc-network", "-ts", "3,1")
    target, draft = parsed(*given, "--device", "RPC0,RPC1")[1].load_options(TARGET, DRAFT)
    assert target == LoadOptions(
        TARGET, rpc=servers, trust_rpc_network=True, tensor_split=(3, 1), device="RPC0,RPC1"
    )
    assert draft == LoadOptions(DRAFT)
    draft = parsed(*given, "-devd", "CUDA0")[1].load_options(TARGET, DRAFT)[1]
    assert draft == LoadOptions(DRAFT, device="CUDA0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--trust-rpc-network",), "no effect without --rpc"),
        (("--rpc", "worker:7", "-sm", "row"), "--split-mode row does not"),
    ],
)
def test_flags_that_do_not_go_with_rpc(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parsed(*arguments)[1].load_options(TARGET, DRAFT)


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("-fa", "-fa on"),
        ("-fa off -c 9", "-fa off -c 9"),
        ("-fa prompt -c 9", "-fa on prompt -c 9"),
        ("--flash-attn auto", "--flash-attn auto"),
        ("--flash-attn -fa off", "--flash-attn on -fa off"),
        ("-- -fa", "-- -fa"),
        ("-fat", "-fat"),
    ],
)
def test_flash_attention_needs_no_value(given: str, completed: str) -> None:
    assert complete(given.split()) == completed.split()


def test_a_line_that_is_being_completed_is_not_refused() -> None:
    program = typer.main.get_command(cli.app)
    run = program.commands["run"]  # type: ignore[attr-defined]
    assert run.make_context("run", ["-cnv"], resilient_parsing=True).params
    with pytest.raises(Exception, match="No such option: -cnv"):
        run.make_context("run", ["-cnv"])


def test_a_pair_names_what_it_cannot_keep() -> None:
    models, loading, sampling, _ = parsed(
        *("-c", "0", "-ngl", "auto", "-ngld", "3", "--rope-scale", "2", "--lora", "a.gguf"),
        *("-mg", "1", "-otd", "a=CPU", "--no-mmap", "-b", "64", "--suffix", "off"),
    )
    assert set(unkept_flags(models, loading)) == {
        "--ctx-size 0", "--rope-scale", "--lora", "--main-gpu", "--override-tensor-draft",
        "--no-mmap", "--batch-size", "--suffix",
    }  # fmt: skip
    kept = kept_settings(FlagGroups(models, loading, sampling))
    assert kept == {"ctx_size": 0, "draft_gpu_layers": 3}  # of which 0 was refused
    groups = FlagGroups(models, loading, sampling)
    assert settle(groups, {"gpu_layers": 9}).loading.n_gpu_layers == AUTO_LAYERS


@pytest.mark.parametrize(
    ("given", "kept", "most"),
    [
        ((), {}, "auto"),
        (("auto",), {}, "auto"),
        (("1",), {"branches": 1}, 1),
        (("2",), {"branches": 2}, 2),
    ],
)
def test_branches(given: Sequence[str], kept: dict[str, object], most: Branches) -> None:
    models, loading, sampling, _ = parsed(*(("--branches", *given) if given else ()))
    groups = FlagGroups(models, loading, sampling)
    assert kept_settings(groups) == kept and models.most_branches == most
    # What was given stays, auto too.
    of_pair = settle(groups, {"branches": 2}).models
    assert of_pair.most_branches == (most if given else 2)


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
        (("-c", "7"), "no number from 8 to"),
        (("-c", str(2**32 + 512)), "no number from 8 to"),
        (("-c", "-1"), "no number from 8 to"),
        (("-c", "9" * 5000), "no number from 8 to"),
        (("-t", "0"), "greater than or equal"),
        (("-ngl", "-3"), "or auto, or -1, or all"),
        (("-ngld", "many"), "no number from 0"),
        (("-b", "63"), "greater than or equal"),
        (("-ub", str(2**16 + 1)), "less than or equal"),
        (("-sm", "columns"), "'columns' is not one of none, layer, row, tensor"),
        (("-ts", "0,0"), "expected shares such as 3,1"),
        (("-ts", "1,nan"), "expected shares such as 3,1"),
        (("-ts", "a"), "could not convert"),
        (("-mg", "-1"), "greater than or equal"),
        (("--rope-scaling", "longrope"), "is not one of none, linear, yarn"),
        (("--rope-scale", "0"), "no number from 1e-06 to"),
        (("--rope-freq-base", "nan"), "no number from"),
        (("--yarn-ext-factor", "-1"), "no number from 0 to"),
        (("--lora-scaled", "a.gguf"), "expected FILE:SCALE"),
        (("--lora-scaled", "a.gguf:much"), "could not convert"),
        (("--lora-scaled", "a.gguf:inf"), "expected a scale"),
        (("--override-kv", "a=1"), "expected KEY=TYPE:VALUE"),
        (("--top-k", "many"), "valid"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[str, ...], words: str) -> None:
    refused = " ".join(refusal(*arguments).replace("│", " ").split())
    assert words in refused and "Invalid value" in refused

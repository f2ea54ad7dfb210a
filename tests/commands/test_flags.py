"""Flags: every option named and explained, and turned into the parameters it stands for."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.core import TyperCommand
from typer.testing import CliRunner

from localspec import cli
from localspec.commands.flags.answer import AnswerFlags
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.llama_command import LlamaCommand, complete
from localspec.commands.flags.pair import (
    PAIR_ROWS,
    PairFlags,
    stored_settings,
    unstored_flags,
)
from localspec.commands.flags.rows import Given
from localspec.commands.flags.serving import ServingFlags
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.run.prompt import PromptFlags
from localspec.core.errors import UsageError
from localspec.core.options.load_options import (
    ALL_LAYERS,
    MAX_DRAFT_TOKENS,
    KeyValue,
    LoadOptions,
    Lora,
    RopeOptions,
    RpcServer,
    RpcServers,
)
from localspec.core.options.model_options import DraftOptions, ModelOptions
from localspec.core.options.option import options
from localspec.core.options.sampling_choice import choose_sampling
from localspec.core.options.sampling_params import SamplingParams
from localspec.library.pairs.options import pair_load_options, picked

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
GROUPS = (PromptFlags, AnswerFlags, TemplateFlags, GrammarFlags)


def parsed(*arguments: str, cls: type[TyperCommand] | None = None) -> Given:
    """What a command receives."""
    received: list[Given] = []
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command(cls=cls)
    @spread_groups
    def command(given: PairFlags, word: Annotated[str, typer.Option("--word")] = "none") -> None:
        assert word == ("given" if "--word" in arguments else "none")
        received.append(given)

    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return received[0]


def loaded(*arguments: str) -> tuple[LoadOptions, LoadOptions]:
    """How flags load the target and the draft."""
    target, draft = pair_load_options(parsed(*arguments), TARGET, DRAFT)
    assert draft is not None
    return target, draft


def models_of(given: Given) -> ModelOptions:
    return ModelOptions(**picked(given, ModelOptions))


def refusal(*arguments: str) -> str:
    with pytest.raises(AssertionError) as caught:
        parsed(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("groups", [GROUPS, (ServingFlags,)])
def test_every_flag_is_explained_and_grouped(groups: tuple[type[Any], ...]) -> None:
    spellings: list[str] = []
    rows = [row for row in (*options(*groups).values(), *PAIR_ROWS.values()) if row.help]
    for row in rows:
        assert row.help_text.endswith("."), row.name
        spellings += row.flags
        if row.name not in ("prompt", "target", "verbose"):
            assert row.panel in (*PANELS, "Server"), row.name
    assert len(spellings) == len(set(spellings))


def params_of(command: str) -> list[Any]:
    program: Any = typer.main.get_command(cli.app)
    return list(program.commands[command].params)


@pytest.mark.parametrize("command", ["run", "chat", "serve", "bench"])
def test_help_shows_the_options_of_every_day(command: str) -> None:
    lines = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "80"}).output
    assert len(lines.splitlines()) <= 62 and max(map(len, lines.splitlines())) <= 80
    shown = re.findall(r"^│ +(?:--?\w|[A-Z]+ )", lines, re.MULTILINE)
    assert 20 <= len(shown) <= 27
    assert lines.rstrip().endswith(f"{command} --help-all")
    # As before it: every option, hidden spellings left out.
    everything = CliRunner().invoke(cli.app, [command, "--help-all"], env={"COLUMNS": "300"}).output
    named = set(re.findall(r"--?[a-zA-Z][\w-]*", everything))
    visible = [each for each in params_of(command) if not getattr(each, "hidden", False)]
    flags = {name for each in visible for name in each.opts if name.startswith("-")}
    assert flags <= named and "--suffix" not in everything and "--help-all" in everything


def test_the_older_spelling_of_prompt_lookup() -> None:
    for flag in ("--suffix", "--prompt-lookup"):
        assert parsed(flag, "off", cls=LlamaCommand) == {"prompt_lookup": False}
        assert models_of(parsed(flag, "on", cls=LlamaCommand)).prompt_lookup
        with pytest.raises(AssertionError, match="'perhaps' is not one of on, off"):
            parsed(flag, "perhaps", cls=LlamaCommand)


@pytest.mark.parametrize("command", ["run", "chat"])
def test_help_begins_with_what_is_wanted_most(command: str) -> None:
    help_text = CliRunner().invoke(cli.app, [command, "--help-all"]).output
    assert tuple(re.findall(r"─ ([A-Z][\w ]+) ─", help_text)) == ("Arguments", "Options", *PANELS)
    sizes = Counter(getattr(option, "rich_help_panel", None) for option in params_of(command))
    assert max(sizes.values()) < 18


def test_nothing_given_means_nothing_decided() -> None:
    given = parsed()
    assert given == {}
    assert pair_load_options(given, TARGET, None) == (LoadOptions(TARGET), None)
    assert models_of(given).draft_options() == DraftOptions()


def test_llama_cpps_spellings_are_understood() -> None:
    given = parsed(
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
    shared: dict[str, Any] = {"mlock": True, "flash_attention": "on"}
    target, draft = pair_load_options(given, TARGET, DRAFT)
    assert target == LoadOptions(
        TARGET, ctx_size=64, gpu_layers=5, threads=3, threads_batch=4, device="none",
        cpu_moe_layers=7, override_tensors=("a=CPU", "b=CPU"), exact=True,
        cache_type_k="q8_0", cache_type_v="q4_0", **shared,
    )  # fmt: skip
    assert draft == LoadOptions(
        DRAFT, ctx_size=32, gpu_layers=6, threads=2, threads_batch=2, device="cpu", **shared
    )
    assert models_of(given).draft_options() == DraftOptions(str(DRAFT), (5,))
    assert given["verbose"] is True
    assert choose_sampling(picked(given, SamplingParams), {}).params == SamplingParams(
        temperature=0.5, top_k=9, top_p=0.8, min_p=0.1, typical_p=0.9, top_n_sigma=1.5,
        xtc_probability=0.5, xtc_threshold=0.2, dynatemp_range=0.4, dynatemp_exp=1.5,
        repeat_penalty=1.1, repeat_last_n=-1, presence_penalty=0.3, frequency_penalty=-0.2,
        dry_multiplier=0.8, dry_base=2, dry_allowed_length=3, dry_penalty_last_n=128,
        dry_sequence_breakers=("\n", "a b"), logit_bias=("5-inf", "7+1.5"), ignore_eos=True,
        seed=8, acceptance="match",
    )  # fmt: skip


def test_other_spellings_of_llama_cpp() -> None:
    given = parsed(
        *("--typical-p", "0.9", "--top-n-sigma", "1.5", "--temperature", "0.5", "--seed", "-1")
    )
    assert given == {"typical_p": 0.9, "top_n_sigma": 1.5, "temperature": 0.5, "seed": -1}


def test_the_draft_follows_the_target() -> None:
    _, draft = loaded(
        *("-m", "big.gguf", "--draft", "small.gguf", "-c", "64", "-t", "3", "-tb", "4"),
        *("-dev", "none", "-ngl", "5", "-ncmoe", "7", "-ot", "a=CPU"),
    )
    # Layers on the GPU and tensor patterns count for one model only.
    assert draft == LoadOptions(DRAFT, threads=3, threads_batch=4, device="none")


def test_the_draft_has_caches_and_tensors_of_its_own() -> None:
    target, draft = loaded("-ctk", "q8_0", "-ctkd", "q4_0", "-ctvd", "f32", "-otd", "a=CPU")
    assert target == LoadOptions(TARGET, cache_type_k="q8_0")
    assert loaded("-ctk", "q8_0", "-ctv", "q8_0")[1] == LoadOptions(DRAFT)
    assert draft == LoadOptions(
        DRAFT, cache_type_k="q4_0", cache_type_v="f32", override_tensors=("a=CPU",)
    )


@pytest.mark.parametrize("flag", ["-ngl", "-ngld"])
@pytest.mark.parametrize(
    ("text", "layers"), [("auto", None), ("-1", None), ("all", ALL_LAYERS), ("-2", ALL_LAYERS)]
)
def test_layers_as_llama_cpp_names_them(flag: str, text: str, layers: int | None) -> None:
    target, draft = loaded(flag, text)
    assert (target if flag == "-ngl" else draft).gpu_layers == layers


def test_auto_is_a_name_where_it_is_no_choice() -> None:
    target, draft = loaded("-dev", "auto", "-devd", "auto")
    assert (target.device, draft.device) == ("auto", "auto")  # which no build has: refused later


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
    for model in loaded(*arguments):
        assert (model.batch_size, model.ubatch_size) == batches


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-b", "64", "-ub", "128"), "more than --batch-size"),
        (("--rope-scale", "2", "--rope-freq-scale", "0.5"), "two names of one value"),
    ],
)
def test_flags_that_contradict_each_other(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loaded(*arguments)


def test_what_changes_a_model_is_for_the_target() -> None:
    target, draft = loaded(
        *("--rope-scaling", "yarn", "--rope-scale", "4", "--rope-freq-base", "1e6"),
        *("--yarn-orig-ctx", "4096", "--yarn-ext-factor", "0.5", "--yarn-attn-factor", "2"),
        *("--yarn-beta-slow", "1.5", "--yarn-beta-fast", "32", "--lora", "a.gguf"),
        *("--lora-scaled", "b:c.gguf:0.5", "--override-kv", "x.y=int:-3", "--no-mmap"),
    )
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
    target, draft = loaded(*shares)
    assert target == LoadOptions(TARGET, tensor_split=(3, 1), split_mode="row", main_gpu=1)
    assert draft == replace(target, path=DRAFT)
    draft = loaded(*shares, "-devd", "CUDA1")[1]
    assert draft == LoadOptions(DRAFT, device="CUDA1")


def test_rpc_servers_are_the_targets() -> None:
    servers = RpcServers([RpcServer("10.0.0.2", 50052), RpcServer("worker", 7)])
    given = ("--rpc", "10.0.0.2:50052,worker:7", "--trust-rpc-network", "-ts", "3,1")
    target, draft = loaded(*given, "--device", "RPC0,RPC1")
    assert target == LoadOptions(
        TARGET, rpc=servers, trust_rpc_network=True, tensor_split=(3, 1), device="RPC0,RPC1"
    )
    assert draft == LoadOptions(DRAFT)
    draft = loaded(*given, "-devd", "CUDA0")[1]
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
        loaded(*arguments)


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


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-hf org/repo:Q8_0 -hfd hf:org/small", "-m hf:org/repo:Q8_0 -md hf:org/small"),
        ("-m a --draft-max=6 --draft-min 2 --gpu-layers 3", "-m a --draft-tokens 6 -ngl 3"),
        ("-m a --jinja -no-cnv --n-predict 4 -r STOP", "-m a --raw -n 4 --stop STOP"),
        ("-m a -p -hf -n 3", "-m a --prompt=-hf -n 3"),
        ("-m a -- -hf b", "-m a -- -hf b"),
    ],
)
def test_llama_cpps_spellings_mean_what_they_mean_there(given: str, meant: str) -> None:
    run = typer.main.get_command(cli.app).commands["run"]  # type: ignore[attr-defined]
    contexts = [run.make_context("run", line.split()) for line in (given, meant)]
    assert contexts[0].params == contexts[1].params


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("run -dve CUDA0", "Did you mean -dev?"),
        ("run -temp 0", "Did you mean --temp?"),
        ("run --no-draft", "Did you mean --draft off?"),
        ("run -cnv", "localspec chat."),
        ("chat -no-cnv", "localspec run --raw."),
        ("serve --prt 3", "No such option: --prt. Did you mean --port? Names"),
        ("serve -hf", "-hf has no value."),
        ("run x -hf --temp 0", "-hf has no value."),
        ("chat --draft-max", "--draft-max has no value."),
    ],
)
def test_a_flag_that_is_not_there_names_the_right_one(given: str, words: str) -> None:
    name, *arguments = given.split()
    command = typer.main.get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    with pytest.raises(Exception, match=re.escape(words)):
        command.make_context(name, arguments)


def test_a_pair_names_what_it_cannot_keep() -> None:
    given = parsed(
        *("-c", "0", "-ngl", "auto", "-ngld", "3", "--rope-scale", "2", "--lora", "a.gguf"),
        *("-mg", "1", "-otd", "a=CPU", "--no-mmap", "-b", "64", "--prompt-lookup", "off", "-v"),
        *("--lookup-files", "a.txt", "--recalibrate", "--seed", "-1"),
    )
    assert set(unstored_flags(given)) == {
        "--ctx-size 0", "--rope-scale", "--lora", "--main-gpu", "--override-tensor-draft",
        "--no-mmap", "--batch-size", "--prompt-lookup", "--lookup-files", "--recalibrate",
    }  # fmt: skip
    # Of these, 0 was refused.
    assert stored_settings(given) == {"ctx_size": 0, "draft_gpu_layers": 3, "seed": -1}
    given = parsed("--prompt-lookup", "on", "-m", "a", "--draft", "b", "--temp", "0")
    assert unstored_flags(given) == []
    assert unstored_flags(parsed("-dev", "auto")) == ["--device"]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ((), {}),
        (("--branches", "2", "--lenient"), {"branches": 2, "lenient": True}),
        (("-ngl", "auto"), {}),
        (("-ngl", "all"), {"gpu_layers": ALL_LAYERS}),
        (("--draft", "off", "--temp", "0"), {"draft_tokens": "off", "temperature": 0}),
        (("--draft-tokens", "auto"), {"draft_tokens": "auto"}),
        (("-fa",), {"flash_attention": "on"}),
        (("-l", "5+1", "--exact"), {"logit_bias": ["5+1"], "exact": True}),
    ],
)
def test_what_a_pair_keeps(arguments: Sequence[str], kept: Mapping[str, object]) -> None:
    assert stored_settings(parsed(*complete(arguments))) == kept


@pytest.mark.parametrize("most", [1, 2, 3])
def test_branches(most: int) -> None:
    assert models_of(parsed("--branches", str(most))).branches == most
    assert models_of(parsed()).branches == 1
    assert "number from 1 to" in refusal("--branches", "4")


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
        (("--draft", str(MAX_DRAFT_TOKENS + 1)), "exceeds the maximum"),
    ],
)
def test_draft_is_a_model_or_a_length(
    arguments: tuple[str, ...], expected: DraftOptions | str
) -> None:
    models = models_of(parsed(*arguments))
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
        (("-c", "7"), "number from 8 to"),
        (("-c", str(2**32 + 512)), "number from 8 to"),
        (("-c", "-1"), "number from 8 to"),
        (("-c", "9" * 5000), "number from 8 to"),
        (("-t", "0"), "number from 1 to 512"),
        (("-cd", "0"), "number from 8 to"),
        (("-ngl", "-3"), "or auto, or -1, or all"),
        (("-ngld", "many"), "number from 0"),
        (("-b", "63"), "number from 64 to 65536"),
        (("-ub", str(2**16 + 1)), "number from 64 to 65536"),
        (("-sm", "columns"), "'columns' is not one of none, layer, row, tensor"),
        (("-ts", "0,0"), "expected shares such as 3,1"),
        (("-ts", "1,nan"), "expected shares such as 3,1"),
        (("-ts", "a"), "could not convert"),
        (("-mg", "-1"), "number from 0 to"),
        (("--rope-scaling", "longrope"), "is not one of none, linear, yarn"),
        (("--rope-scale", "0"), "number from 1e-06 to"),
        (("--rope-freq-base", "nan"), "number from"),
        (("--yarn-ext-factor", "-1"), "number from 0 to"),
        (("--lora-scaled", "a.gguf"), "expected FILE:SCALE"),
        (("--lora-scaled", "a.gguf:much"), "could not convert"),
        (("--lora-scaled", "a.gguf:inf"), "expected a scale"),
        (("--override-kv", "a=1"), "expected KEY=TYPE:VALUE"),
        (("--top-k", "many"), "number from"),
        (("--temp", "101"), "number from 0 to 100"),
        (("--seed", "-2"), "number from -1 to"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[str, ...], words: str) -> None:
    refused = " ".join(refusal(*arguments).replace("│", " ").split())
    assert words in refused and "Invalid value" in refused

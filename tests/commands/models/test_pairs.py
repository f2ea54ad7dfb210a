"""The commands about pairs: kept under a name, shown, used wherever models are named, forgotten."""

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from localspec.core import machine, paths
from localspec.hub.remote_header import FIRST_BYTES
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import load_catalog
from tests.support.command import Command
from tests.support.fake_hub import FakeHub
from tests.support.library import zoo
from tests.support.library.hub_pair import DRAFTED, FLAGS, PAIR, Pair, Reads, states, told

# --- pairs of one's own --------------------------------------------------------------------


@pytest.fixture
def mine(fetched: list[Path], localspec: Command) -> list[Path]:
    """A pair of references under a name, with settings; the Hub is gone."""
    done = localspec(
        *("pair", "add", "mine", "-m", PAIR[0], "-md", PAIR[1], "--draft-tokens", "3", "--exact"),
        *("--temp", "0", "-c", "256", "-t", "1"),
    )
    assert (done.code, done.out) == (0, "")
    assert done.err == "Saved. Chat with it: localspec chat mine\n"
    return fetched


def test_a_pair_is_added_shown_and_removed(mine: list[Path], localspec: Command) -> None:
    shown = localspec("pair", "show", "MINE")
    assert (shown.code, shown.err) == (0, "")
    facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in shown.out.splitlines())
    assert facts["pair"] == "mine" and facts["on this disk"] == "target, draft"
    assert facts["target"] == "hf:org/big-GGUF:Q4_K_M" and facts["draft"] == "hf:org/small-GGUF"
    for setting in ("draft_tokens = 3", "exact = true", "temperature = 0.0", "ctx_size = 256"):
        assert f"setting       {setting}\n" in shown.out
    document = json.loads(localspec("pair", "show", "mine", "--json").out)
    assert document["settings"] == {
        "draft_tokens": 3, "exact": True, "temperature": 0.0, "ctx_size": 256, "threads": 1,
    }  # fmt: skip
    assert document["size"] == sum(path.stat().st_size for path in mine)
    kept = user_pairs.load("mine").files
    assert [(Path(each.path), each.size) for each in kept] == [
        (path, path.stat().st_size) for path in mine
    ]
    assert [each.sha256 for each in kept] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in mine
    ]
    assert localspec("pair", "list").out == localspec("pairs").out
    row = localspec("pair", "list", "--no-header").out.splitlines()[0]
    assert row.startswith("mine") and "both" in row and "your own" in row
    document = json.loads(localspec("pairs", "--json").out)
    assert [each["name"] for each in document["pairs"]] == [
        *("mine", *(pair.name for pair in load_catalog()))
    ]

    removed = localspec("pair", "forget", "mine")
    assert (removed.code, removed.out) == (0, "")
    assert removed.err == "Removed: mine. Its models stay where they are.\n"
    assert all(path.exists() for path in mine)
    assert told(localspec("pair", "show", "mine"))[0].startswith("There is no pair named 'mine'")


@pytest.mark.llama
def test_a_pair_named_like_a_known_one_says_so(mine: list[Path], localspec: Command) -> None:
    done = localspec("pair", "add", "Qwen3-14B", "--target", "mine")
    assert done.err.startswith("Qwen3-14B is also a known pair: yours will be used in its place.")


@pytest.mark.llama
def test_a_pairs_name_wherever_models_are_named(mine: list[Path], localspec: Command) -> None:
    run = json.loads(localspec("run", "-m", "mine", "-n", "8", "Say the thing", "--json").out)
    settings = run["settings"]
    assert settings["target"]["file"] == str(mine[0]) and run["drafted"] > 0
    assert settings["draft"]["file"] == str(mine[1])
    assert settings["draft_tokens"] == 3 and settings["sampling"]["temperature"] == 0
    assert settings["target"]["ctx_size"] == 256 and settings["target"]["exact"] is True
    assert settings["target"]["threads"] == settings["draft"]["threads"] == 1

    check = localspec("check", "mine")
    assert check.code == 0 and check.out == localspec("check", *PAIR).out
    assert localspec("suggest", "mine").out.startswith("1. org/small-GGUF/small-Q8_0.gguf\n")
    verified = localspec("verify", "mine")
    assert verified.code == 0 and states(verified) == ["right", "right"]
    done = localspec("download", "mine")
    assert done.out.splitlines() == [str(path) for path in mine]

    chat = localspec("chat", "mine", "-n", "8", stdin="Say the thing\n")
    assert chat.code == 0 and run["text"] in chat.out and "drafted tokens accepted" in chat.err


@pytest.mark.llama
def test_a_pair_keeps_sampling_of_every_kind(fetched: list[Path], localspec: Command) -> None:
    flags = (
        *("--dry-multiplier", "0.8", "--dry-sequence-breaker", r"\n", "-l", "5-inf", "-l", "7+1"),
        *("--ignore-eos", "--seed", "-1", "-c", "256", "-t", "1"),
    )
    assert localspec("pair", "add", "odd", "-m", PAIR[0], "-md", PAIR[1], *flags).code == 0
    shown = json.loads(localspec("pair", "show", "odd", "--json").out)["settings"]
    assert shown["logit_bias"] == ["5-inf", "7+1"] and shown["seed"] == -1

    def sampling(*more: str) -> dict[str, object]:
        done = localspec("run", "-m", "odd", "-n", "2", "Say the thing", "--json", *more)
        found: dict[str, object] = json.loads(done.out)["settings"]["sampling"]
        return found

    once, again = sampling(), sampling("-l", "9+1", "--seed", "4")
    assert once["dry_sequence_breakers"] == ["\n"] and once["dry_multiplier"] == 0.8
    assert once["logit_bias"] == ["5-inf", "7+1"] and once["ignore_eos"] is True
    assert (again["logit_bias"], again["seed"]) == (["9+1"], 4)  # flags stand above the pair
    refused = localspec("pair", "add", "bad", "-m", PAIR[0], "-md", PAIR[1], "-l", "5")
    assert refused.code == 2 and "5 is no logit bias" in refused.err


@pytest.mark.llama
def test_a_pairs_name_in_bench(mine: list[Path], localspec: Command, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"task": "say", "prompt": "Say the thing"}\n')
    done = localspec("bench", "mine", "--prompts", prompts, "-r", "1", "-n", "6", "--json")
    document = json.loads(done.out)
    assert done.code == 0 and document["complete"] is True
    assert document["settings"]["draft_tokens"] == [0, 3]
    assert document["settings"]["sampling"]["temperature"] == 0
    assert document["target"]["ctx_size"] == 256 and document["draft"]["file"] == str(mine[1])
    lengths = json.loads(
        localspec(
            *("bench", "mine", "--draft-tokens", "2", "--prompts", prompts, "-r", "1", "-n", "2"),
            "--json",
        ).out
    )["settings"]["draft_tokens"]
    assert lengths == [0, 2]


@pytest.mark.llama
def test_flags_win_over_a_pairs_settings(mine: list[Path], localspec: Command) -> None:
    flags = ("--draft", "2", "-c", "128", "--temp", "0.5", "--seed", "7", "-n", "4")
    done = localspec("run", "-m", "mine", *flags, "Say the thing", "--json")
    settings = json.loads(done.out)["settings"]
    assert settings["draft_tokens"] == 2 and settings["target"]["ctx_size"] == 128
    assert settings["sampling"]["temperature"] == 0.5 and settings["sampling"]["seed"] == 7
    assert settings["target"]["exact"] is True  # of this, nothing else was said
    off = json.loads(localspec("run", "-m", "mine", "--draft", "off", *FLAGS, "--json").out)
    assert off["settings"]["draft"] is None and off["drafted"] == 0
    other = localspec("run", "-m", "mine", "-md", mine[0], *FLAGS, "--json")
    assert json.loads(other.out)["settings"]["draft"]["file"] == str(mine[0])


@pytest.mark.llama
@pytest.mark.parametrize(
    ("flag", "stored", "given", "name"),
    [("-ctk", "q8_0", "f16", "cache_type_k"), ("-ngl", 3, 0, "gpu_layers")],
)
def test_a_flag_wins_though_it_is_the_default_or_zero(
    pair: Pair, localspec: Command, flag: str, stored: str | int, given: str | int, name: str
) -> None:
    models = ("-m", pair.target, "-md", pair.draft)
    assert localspec("pair", "add", "small", *models, "--draft", "2", flag, str(stored)).code == 0
    assert user_pairs.find("small").settings[name] == stored
    done = localspec("run", "-m", "small", flag, str(given), *FLAGS, "--json")
    assert json.loads(done.out)["settings"]["target"][name] == given


def test_a_pair_can_be_made_from_a_pair(mine: list[Path], localspec: Command) -> None:
    assert localspec("pair", "add", "copy", "-m", "mine").code == 0
    assert localspec("pair", "add", "half", "-m", "mine", "-md", mine[1]).code == 0
    found = [user_pairs.load(name) for name in ("mine", "copy", "half")]
    assert found[0].target == found[1].target == found[2].target
    assert found[1].draft == found[0].draft and found[2].draft == str(mine[1])


def test_a_pair_of_files_is_verified_by_what_was_kept(
    pair: Pair, localspec: Command, tmp_path: Path
) -> None:
    files = []
    for name, source in (("big", pair.target), ("small", pair.draft)):
        files.append(zoo.put(tmp_path / "mine" / f"{name}.gguf", source.read_bytes()))
    added = localspec("pair", "add", "mine", "-m", files[0], "-md", files[1])
    assert added.code == 0 and len(user_pairs.load("mine").files) == 2
    done = localspec("verify", "mine")
    assert done.code == 0 and states(done) == ["right", "right"]
    data = bytearray(files[1].read_bytes())
    data[90_000] ^= 1
    files[1].write_bytes(data)
    wrong = localspec("verify", "mine")
    assert wrong.code == 1 and states(wrong) == ["right", "wrong"]


@pytest.mark.llama
def test_a_pair_that_was_added_leniently_is_used_so(stocked: FakeHub, localspec: Command) -> None:
    models = ("-m", "org/big-GGUF", "-md", "org/tuned-GGUF")
    assert localspec("pair", "add", "strict", *models).code == 1
    assert user_pairs.names() == []
    assert localspec("pair", "add", "mild", *models, "--lenient", *DRAFTED).code == 0
    assert user_pairs.find("mild").settings["lenient"] is True
    done = localspec("download", "mild")
    assert done.code == 0 and len(done.out.splitlines()) == 2
    assert localspec("run", "-m", "mild", *FLAGS).code == 0
    assert localspec("check", "mild").code == 0


def test_a_pair_of_names_from_the_list(fetched: list[Path], localspec: Command) -> None:
    names = [line.split()[0] for line in localspec("list", "--no-header").out.splitlines()]
    assert localspec("pair", "add", "listed", "-m", names[0], "-md", names[1]).code == 0
    assert localspec("check", "listed").out == localspec("check", *names).out
    assert localspec("verify", "listed").code == 0


def test_adding_a_pair_runs_the_check(stocked: FakeHub, localspec: Command) -> None:
    done = localspec("pair", "add", "bad", "-m", "org/big-GGUF", "-md", "org/other-GGUF")
    assert done.code == 1 and done.out.splitlines()[-1].startswith("not compatible; ")
    assert user_pairs.names() == []
    assert sum(stocked.served.values()) == 2 * FIRST_BYTES
    good = localspec("pair", "add", "good", "-m", "org/big-GGUF", "-md", "org/small-GGUF")
    assert good.code == 0 and user_pairs.load("good").files == ()  # nothing is here to be hashed
    assert localspec("download", "good").code == 0


def test_adding_a_pair_searches_the_disk_once_and_for_files_not_at_all(
    pair: Pair, localspec: Command, home: Path, reads: Reads
) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    for repo, name, path in (
        ("org/big-GGUF", "big-Q4_K_M.gguf", pair.target),
        ("org/small-GGUF", "small-Q8_0.gguf", pair.draft),
    ):
        zoo.put_in_hub_cache(cache, repo, name, path.read_bytes())
    for name, models, searches in (("mine", PAIR, 1), ("files", (pair.target, pair.draft), 0)):
        reads.searches = 0
        reads.headers.clear()
        assert localspec("pair", "add", name, "-m", models[0], "-md", models[1]).code == 0
        assert len(user_pairs.load(name).files) == 2
        assert reads.searches == searches
        assert len(reads.headers) == 2 and set(reads.headers.values()) == {1}


def test_a_name_that_is_no_good_is_told_before_anything_is_read(
    stocked: FakeHub, localspec: Command
) -> None:
    user_pairs.add("taken", "/a.gguf", "/b.gguf", {})
    for name in ("taken", "find", "x.gguf"):
        done = localspec("pair", "add", name, "-m", "org/big-GGUF", "-md", "org/small-GGUF")
        told(done)
        assert done.code == 2
    assert stocked.requests == []


def test_pairs_that_fit_this_memory(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: (4 * 10**9, 16 * 10**9))
    fitting = [
        row["name"] for row in json.loads(localspec("pairs", "--fits", "--json").out)["pairs"]
    ]
    rows = json.loads(localspec("pairs", "--json").out)["pairs"]
    assert fitting == [row["name"] for row in rows if row["fits"]]
    assert "llama3.1-8b" in fitting and "llama3.1-70b" not in fitting
    family = localspec("pairs", "--no-header", "--family", "qwen2.5", "--fits").out
    assert family.startswith("qwen2.5-7b") and "72b" not in family


@pytest.mark.parametrize("words", [(), ("chat",)])
@pytest.mark.parametrize(
    ("typed", "chosen"), [("1", ["mine"]), ("2", ["alone.gguf"]), ("", []), ("7", [])]
)
def test_without_a_name_the_models_that_are_here_are_offered(
    fetched: list[Path],
    localspec: Command,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    typed: str,
    chosen: list[str],
) -> None:
    asked: list[str | None] = []

    def request(name: str | None, *_: object, **__: object) -> None:
        asked.append(name)
        raise SystemExit

    monkeypatch.setattr("localspec.commands.chat.chat.make_request", request)
    lines = iter([typed, ""])  # a wrong number is asked again
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    localspec("pair", "add", "mine", "-m", PAIR[0], "-md", PAIR[1])
    shutil.copy(fetched[0], paths.models_folder() / "alone.gguf")
    with open(paths.models_folder() / "alone.gguf", "r+b") as file:  # another content
        file.seek(-1, 2)
        file.write(b"\x01")
    for bundled in paths.bundled_folder().glob("*.gguf"):  # as in a checkout
        (paths.models_folder() / bundled.name).symlink_to(bundled)
    done = localspec(*words)
    out = done.out
    assert ("'7' is not a number from 1 to 2." in done.err) == (typed == "7")
    assert "1  localspec chat mine" in out and "2  localspec chat alone.gguf" in out
    assert asked == chosen
    assert "3  " not in out  # the models of the pair


def test_pairs_for_another_machine(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: (10**9, 10**9))

    def fitting(*flags: str) -> list[str]:
        rows = json.loads(localspec("pairs", "--fits", "--json", *flags).out)["pairs"]
        return [row["name"] for row in rows]

    assert fitting() == [] and "qwen2.5-7b" in fitting("--memory", "8")
    assert "qwen2.5-32b" in fitting("--memory", "16", "--vram", "8")
    assert fitting("--vram", "8") == fitting("--memory", "8")
    ram, gpu = (localspec("pairs", flag, "8").err for flag in ("--memory", "--vram"))
    assert "Recommended for such a machine: localspec chat qwen2.5-coder-1.5b" in ram
    assert "Recommended for such a machine: localspec chat llama3.1-8b" in gpu  # filled by a pair
    assert localspec("pairs", "--vram", "0").code == 2


def test_ram_and_a_gpu_together_have_a_pair_of_their_own(localspec: Command) -> None:
    done = localspec("pairs", "--memory", 32, "--vram", 8)
    assert "together: localspec chat qwen3-coder-30b -ncmoe 999 (downloads 19.1 GB)" in done.err
    assert "together" not in localspec("pairs", "--memory", 32).err


def test_the_memory_of_a_pair_is_a_sum(localspec: Command) -> None:
    done = localspec("pair", "show", "llama3.1-8b")
    # 131 kB for 8,192 tokens, 33 for 4,096, and 0.2 GB of buffers.
    assert "6.2 GB; about 7.6 GB with caches and buffers" in done.out

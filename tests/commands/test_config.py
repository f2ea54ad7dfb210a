"""Settings that stay: the commands config, and what wins over what."""

import json
from pathlib import Path
from typing import Any

import pytest

from localspec.commands.flags.settings import setting_rows
from localspec.library.pairs.user_pairs import BUNDLED
from tests.support.command import HELLO, Command


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings" / "mine.toml"
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(path))
    return path


def listed(localspec: Command, *flags: str) -> dict[str, Any]:
    """Value and place of each setting."""
    document = json.loads(localspec("config", *flags, "--json").out)
    return {each["name"]: (each["value"], each["from"]) for each in document["settings"]}


@pytest.mark.llama
def test_an_argument_wins_over_a_variable(
    localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_TARGET", "nosuch")
    assert localspec("export", "demo", "--to", "llama-server").code == 0
    assert "Two targets" in localspec("chat", "demo", "-m", "other").err
    monkeypatch.setenv("LOCALSPEC_TARGET", "demo")
    assert "no pair named 'nosuch'" in localspec("chat", "nosuch").err
    assert localspec("run", "hello", "-n", "2").code == 0  # where words are the prompt


@pytest.mark.llama
def test_a_default_model(localspec: Command, file: Path) -> None:
    assert localspec("config", "set", "target", "demo").err == ""
    assert localspec("run", "-n", "2", "--json", "say hello").code == 0
    assert "'hello'" in localspec("run", "hello", "-n", "2").err  # may be a model
    assert localspec("export", "--to", "llama-server").code == 0
    assert "no pair named 'nosuch'" in localspec("chat", "nosuch").err
    assert "is called 'nosuch'" in localspec("config", "set", "target", "nosuch").err
    assert "no pair named 'nosuch'" in localspec("chat").err


def test_errors_say_where_a_value_was_set(
    localspec: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir()
    file.write_text("draft_tokens = 4\n[models.demo]\ndraft_tokens = 99\n")
    assert f"{file}, models.demo sets draft_tokens." in localspec("run", "demo", "hi").err
    monkeypatch.setenv("LOCALSPEC_DRAFT_TOKENS", "abc")
    assert "LOCALSPEC_DRAFT_TOKENS sets draft_tokens." in localspec("run", "demo", "hi").err
    assert "sets" not in localspec("run", "demo", "hi", "--draft-tokens", "abc").err
    monkeypatch.setenv("LOCALSPEC_TEMPERATURE", "abc")
    assert "'LOCALSPEC_TEMPERATURE': expected a number" in localspec("run", "demo", "hi").err


def test_values_are_set_listed_and_forgotten(
    localspec: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Nothing is set." in localspec("config").err
    assert localspec("config", "get", "--temp").out == "0.8\n"
    for words in (["--temp", "0.5"], ["stop", "a", "1"], ["prompt-lookup", "off"]):
        assert localspec("config", "set", *words).code == 0
    done = localspec("config", "set", "--for", "demo", "system", "Be brief")
    assert (done.code, done.err) == (0, "")
    file.write_text("# mine\n" + file.read_text())
    monkeypatch.setenv("LOCALSPEC_TOP_K", "3")
    monkeypatch.setenv("LOCALSPEC_API_KEY", "secret")
    assert [localspec("config", "get", name).out for name in ("temp", "top_k")] == ["0.5\n", "3\n"]
    place = str(file)
    assert listed(localspec) == {
        "temperature": (0.5, place),
        "stop": (["a", "1"], place),
        "prompt_lookup": (False, place),
        "top_k": (3, "LOCALSPEC_TOP_K"),
        "api_key": ("(hidden)", "LOCALSPEC_API_KEY"),
        "system": ("Be brief", f"{place}, models.demo"),
    }
    everything = listed(localspec, "--all")
    assert everything.keys() == setting_rows().keys()
    assert everything["top_p"] == (0.95, "default")
    assert localspec("config", "unset", "temp").code == 0
    assert localspec("config", "unset", "--for", "demo", "system").code == 0
    assert listed(localspec).keys() == {"stop", "prompt_lookup", "top_k", "api_key"}
    assert localspec("config", "list").out == localspec("config").out
    assert file.read_text().startswith("# mine\n") and "models" not in file.read_text()
    assert localspec("config", "path").out == f"{file}\n"


def test_a_setting_has_one_type_wherever_it_is_set(
    localspec: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, tuple[str, object]] = {
        "temperature": ("1", 1.0),
        "mmap": ("false", False),
        "draft_tokens": ("4", "4"),
        "gpu_layers": ("auto", -1),
        "models_dir": (f"{tmp_path}", f"{tmp_path}"),
        "stop": ("a", ["a"]),
        "lookup_files": (f"{tmp_path}/a b", [f"{tmp_path}/a b"]),
        "lora_scaled": ("/a.gguf:0.5", ["/a.gguf:0.5"]),
        "override_kv": ("a=bool:true", ["a=bool:true"]),
        "tensor_split": ("1,2", [1.0, 2.0]),
    }
    for name, (text, _) in values.items():
        assert localspec("config", "set", name, text).code == 0
    wanted = {name: value for name, (_, value) in values.items()}
    in_file = {name: value for name, (value, _) in listed(localspec).items()}
    for name, (text, _) in values.items():
        monkeypatch.setenv(f"LOCALSPEC_{name.upper()}", text)
    by_variable = {name: value for name, (value, _) in listed(localspec).items()}
    assert in_file == by_variable == wanted
    assert all(type(in_file[name]) is type(value) for name, value in wanted.items())
    monkeypatch.setenv("LOCALSPEC_MMAP", "Off")  # as flags read a variable
    assert listed(localspec)["mmap"] == (False, "LOCALSPEC_MMAP")
    monkeypatch.setenv("LOCALSPEC_TOP_K", "many")
    done = localspec("config", "--json")
    assert done.code == 2 and "LOCALSPEC_TOP_K sets it" in done.err


def test_unset_of_nothing_is_said_and_no_error(localspec: Command, file: Path) -> None:
    done = localspec("config", "unset", "temperature")
    assert done.code == 0 and "temperature is not set." in done.err and not file.exists()


def test_a_model_that_is_not_here_is_said(localspec: Command) -> None:
    done = localspec("config", "set", "--for", "dmeo", "top-k", "3")
    assert done.code == 0 and "No pair or model here is called 'dmeo'" in done.err
    assert localspec("config", "set", "--for", "org/big:Q8_0", "top-k", "3").err == ""


def test_a_folder_that_is_not_there_is_said(localspec: Command, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    done = localspec("config", "set", "models-dir", str(missing))
    assert done.code == 0 and f"there is no {missing} yet" in done.err
    assert localspec("config", "set", "models-dir", str(tmp_path)).err == ""


def test_a_path_from_this_folder_counts_in_every_folder(
    localspec: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert localspec("config", "set", "models-dir", "models").err == ""
    (tmp_path / "x.gguf").touch()
    assert localspec("config", "set", "target", "x.gguf").code == 0
    assert localspec("config", "get", "target").out == f"{tmp_path / 'x.gguf'}\n"
    assert localspec("config", "set", "target", "demo").code == 0  # a name stays one
    assert localspec("config", "get", "target").out == "demo\n"
    assert localspec("config", "set", "lookup-files", "a.txt", "b.txt").code == 0
    assert localspec("config", "get", "models-dir").out == f"{tmp_path / 'models'}\n"
    assert localspec("config", "get", "lookup-files").out.split(", ") == [
        str(tmp_path / "a.txt"), f"{tmp_path / 'b.txt'}\n",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "temprature", "1"], "Did you mean temperature"),
        (["set", "draft", "x.gguf"], "There is no setting 'draft'."),
        (
            ["set", "temperature", "warm"],
            "temperature: expected a number from 0 to 100",
        ),
        (["set", "temperature", "true"], "temperature: this is not a switch"),
        (["set", "temperature", "1", "2"], "temperature takes one value."),
        (["set", "mmap", "maybe"], "mmap: 'maybe' is neither true nor false"),
    ],
)
def test_what_cannot_be_is_refused(
    localspec: Command, file: Path, words: list[str], said: str
) -> None:
    done = localspec("config", *words)
    assert done.code == 2 and said in done.err and not file.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tmperature = 1", "Did you mean temperature?"),
        ("temperature = 'warm'", "temperature: expected a number"),
        ("temperature = [1, 2]", "temperature takes one value."),
        ("temperature", "Expected '='"),
        ("models = 3", "models is not a table"),
        ("[models]\ndemo = 3", "models.demo is not a table"),
        ("ctx-size = 5", "ctx-size is a flag; the setting is ctx_size"),
        ("a = " + "[" * 5000, "mine.toml: "),
    ],
)
def test_a_wrong_file_is_named_and_can_be_mended(
    localspec: Command, file: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    file.parent.mkdir()
    file.write_text(text)
    for command in (["config"], ["run", "-m", BUNDLED, HELLO]):
        done = localspec(*command)
        assert done.code == 1 and said in done.err and "localspec config edit" in done.err
    monkeypatch.setenv("EDITOR", "cp /dev/null")
    assert localspec("config", "edit").code == 0 and file.read_text() == ""
    assert localspec("config").code == 0


@pytest.fixture(autouse=True)
def editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "false")


def test_an_editor_that_fails_is_said(localspec: Command, file: Path) -> None:
    done = localspec("config", "edit")
    assert done.code == 1 and "its exit code is 1." in done.err


@pytest.mark.llama
def test_a_flag_wins_over_variable_model_and_file(
    run: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(*flags: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run(HELLO, "--json", *flags).out)["settings"]
        return found

    def top_k(*flags: str) -> int:
        return int(settings(*flags)["sampling"]["top_k"])

    assert top_k() == 40
    file.parent.mkdir()
    file.write_text("top_k = 1\n")
    assert top_k() == 1
    file.write_text("top_k = 1\n[models.'target.gguf']\ntop_k = 2\nsystem = 'Be brief'\n")
    assert top_k() == 2
    monkeypatch.setenv("LOCALSPEC_TOP_K", "3")
    assert top_k() == 3
    assert top_k("--top-k", "4") == 4
    tokens = [
        json.loads(run(*w, "--json").out)["prompt_tokens"]
        for w in ([HELLO], [HELLO, "--system", ""])
    ]
    assert tokens[0] > tokens[1]
    assert run("--raw", "ab").code == 0  # where a system message has no place

"""Paths: the environment first, then the checkout, then the user's own folders."""

from pathlib import Path

import pytest

from localspec.core import paths
from localspec.core.errors import FileProblem


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source checkout, with the package inside."""
    root = tmp_path / "checkout"
    (root / "models" / "demo").mkdir(parents=True)
    (root / "localspec").mkdir()
    (root / "pyproject.toml").touch()
    monkeypatch.setattr(paths, "CHECKOUT", root)
    monkeypatch.setattr(paths, "PACKAGE", root / "localspec")
    return root


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package: a folder among other packages."""
    package = tmp_path / "site-packages" / "localspec"
    (package / "demo_pair").mkdir(parents=True)
    monkeypatch.setattr(paths, "CHECKOUT", package.parent)
    monkeypatch.setattr(paths, "PACKAGE", package)
    return package


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALSPEC_MODELS")
    monkeypatch.delenv("LOCALSPEC_CACHE")


@pytest.mark.parametrize("layout", ["checkout", "installed"])
def test_the_environment_wins(
    layout: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    request.getfixturevalue(layout)
    monkeypatch.setenv("LOCALSPEC_MODELS", "/big/disk")
    monkeypatch.setenv("LOCALSPEC_CACHE", "~/scratch")
    assert paths.models_folder() == Path("/big/disk")
    assert paths.cache_folder() == home / "scratch"


def test_a_checkout_keeps_its_models(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    assert paths.in_checkout()
    assert paths.models_folder() == checkout / "models"


@pytest.mark.parametrize("missing", ["pyproject.toml", "models"])
def test_half_a_checkout_is_none(
    missing: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / missing).rename(checkout / "elsewhere")
    assert not paths.in_checkout()


@pytest.mark.parametrize(
    ("platform", "environment", "models", "cache"),
    [
        ("linux", {}, ".local/share/localspec/models", ".cache/localspec"),
        ("linux", {"XDG_DATA_HOME": "", "XDG_CACHE_HOME": ""}, ".local/share/localspec/models",
         ".cache/localspec"),
        ("linux", {"XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "/c"}, "/d/localspec/models",
         "/c/localspec"),
        ("darwin", {}, "Library/Application Support/localspec/models", "Library/Caches/localspec"),
        ("linux", {"LOCALSPEC_MODELS": "", "LOCALSPEC_CACHE": ""}, ".local/share/localspec/models",
         ".cache/localspec"),
    ],
)  # fmt: skip
def test_an_installed_package_uses_the_users_folders(
    platform: str,
    environment: dict[str, str],
    models: str,
    cache: str,
    installed: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget(monkeypatch)
    monkeypatch.setattr("sys.platform", platform)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not paths.in_checkout()
    assert paths.models_folder() == home / models
    assert paths.cache_folder() == home / cache


@pytest.mark.parametrize(
    ("layout", "folder"), [("checkout", "../models/demo"), ("installed", "demo_pair")]
)
def test_demo_models(layout: str, folder: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(layout)
    demo = (paths.PACKAGE / folder).resolve()
    (demo / "target.gguf").touch()
    with pytest.raises(FileProblem, match="draft.gguf is missing"):
        paths.demo_pair()
    (demo / "draft.gguf").touch()
    assert paths.demo_pair() == (demo / "target.gguf", demo / "draft.gguf")


def test_nothing_is_created(installed: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    paths.models_folder()
    paths.cache_folder()
    assert list(home.iterdir()) == []


def test_without_a_home_only_our_own_folders_are_refused(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a user without an entry
    assert paths.models_folder().name == "models"
    assert paths.system_folder("cache") == Path("~/.cache")  # of other tools: passed over
    forget(monkeypatch)
    for folder in (paths.cache_folder, paths.models_folder, paths.history_file):
        with pytest.raises(FileProblem, match="the home folder is unknown") as caught:
            folder()
        assert caught.value.hint.startswith("Set HOME to a folder that you may write to")


@pytest.mark.parametrize("folder", ["x", "./x", "../x"])
def test_relative_folders_of_xdg_do_not_count(
    installed: Path, home: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    forget(monkeypatch)
    for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", folder)
    monkeypatch.setattr("sys.platform", "linux")
    assert paths.cache_folder() == home / ".cache/localspec"
    assert paths.config_file() == home / ".config/localspec/config.toml"
    assert paths.state_folder() == home / ".local/state/localspec"
    assert paths.hub_cache_folder() == home / ".cache/huggingface/hub"


def test_this_package_lies_where_it_says() -> None:
    assert (paths.PACKAGE / "cli.py").is_file()

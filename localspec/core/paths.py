"""Paths of models, the demo pair, caches and settings."""

import os
import sys
from pathlib import Path
from typing import Literal

from localspec.core.errors import FileProblem, MissingFile

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
Kind = Literal["cache", "config", "data", "state"]
_DEMO_MODELS = ("target", "draft", "hybrid")


def in_checkout() -> bool:
    """True when the package runs from a source checkout (an editable install included)."""
    return (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "models").is_dir()


def demo_pair() -> tuple[Path, Path]:
    """The bundled target and draft. Raises FileProblem when the installation lacks them."""
    return _bundled("target"), _bundled("draft")


def is_bundled(path: Path) -> bool:
    return path.resolve() in [bundled_folder() / f"{name}.gguf" for name in _DEMO_MODELS]


def bundled_folder() -> Path:
    return CHECKOUT / "models" / "demo" if in_checkout() else PACKAGE / "demo_pair"


def _bundled(name: str) -> Path:
    path = bundled_folder() / f"{name}.gguf"
    if not path.is_file():
        raise MissingFile(
            f"The bundled demo model {path} is missing.",
            "Reinstall localspec, or make it again: python -m scripts.train_demo_models",
        )
    return path


def models_folder() -> Path:
    """Folder of downloaded models: LOCALSPEC_MODELS, the checkout's models/, or user data."""
    chosen = os.environ.get("LOCALSPEC_MODELS")
    if chosen:
        return _expand(chosen)
    return CHECKOUT / "models" if in_checkout() else _own_folder("data") / "models"


def history_file() -> Path:
    return _own_folder("data") / "chat_history"


def conversations_folder() -> Path:
    return _own_folder("data") / "conversations"


def config_file() -> Path:
    """File of saved settings: LOCALSPEC_CONFIG, else in the user's config folder."""
    chosen = os.environ.get("LOCALSPEC_CONFIG")
    return _expand(chosen) if chosen else _own_folder("config") / "config.toml"


def cache_folder() -> Path:
    """Folder of files that can be made again: LOCALSPEC_CACHE, else the user's cache folder."""
    chosen = os.environ.get("LOCALSPEC_CACHE")
    return _expand(chosen) if chosen else _own_folder("cache")


def hub_cache_folder() -> Path:
    """Folder of huggingface_hub's downloads: HF_HUB_CACHE, else `hub` in HF_HOME."""
    if chosen := folder_from("HF_HUB_CACHE") or folder_from("HUGGINGFACE_HUB_CACHE"):
        return chosen
    caches = xdg_folder("cache") or Path(os.path.expanduser("~/.cache"))
    return (folder_from("HF_HOME") or caches / "huggingface") / "hub"


def folder_from(variable: str) -> Path | None:
    """The folder in an environment variable, in which ~ and other variables are expanded."""
    value = os.environ.get(variable)
    return Path(os.path.expandvars(os.path.expanduser(value))) if value else None


def home() -> Path:
    """The user's home folder; "~", which no folder is called, if it is unknown."""
    return Path(os.path.expanduser("~"))


def state_folder() -> Path:
    return _own_folder("state")


def system_folder(kind: Kind) -> Path:
    """Folder in which this user's programs keep caches, settings, data or their state."""
    if sys.platform == "darwin":
        return home() / "Library" / ("Caches" if kind == "cache" else "Application Support")
    folders = {"data": ".local/share", "state": ".local/state"}
    return xdg_folder(kind) or home() / folders.get(kind, f".{kind}")


def xdg_folder(kind: Kind) -> Path | None:
    """The folder in XDG_CACHE_HOME or the like; a relative one does not count, as specified."""
    folder = folder_from(f"XDG_{kind.upper()}_HOME")
    return folder if folder and folder.is_absolute() else None


def _own_folder(kind: Kind) -> Path:
    return _expand(str(system_folder(kind) / "localspec"))


def _expand(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileProblem(
            f"{path} names no folder: the home folder is unknown.",
            "Set HOME to a folder that you may write to, such as HOME=/tmp.",
        ) from error

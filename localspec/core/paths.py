"""Where models, the demo pair and caches lie."""

import os
import sys
from pathlib import Path

from localspec.core.errors import FileProblem

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent


def in_checkout() -> bool:
    """True when the package runs from a source checkout (an editable install included)."""
    return (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "models").is_dir()


def demo_pair() -> tuple[Path, Path]:
    """The bundled target and draft. Raises FileProblem when the installation lacks them."""
    return _bundled("target"), _bundled("draft")


def demo_hybrid() -> Path:
    """The bundled hybrid target with an MTP head; raises FileProblem when it is missing."""
    return _bundled("hybrid")


def _bundled(name: str) -> Path:
    folder = CHECKOUT / "models" / "demo" if in_checkout() else PACKAGE / "demo_pair"
    path = folder / f"{name}.gguf"
    if not path.is_file():
        raise FileProblem(
            f"The bundled demo model {path} is missing.",
            "Reinstall localspec, or make it again: python -m scripts.train_demo_models",
        )
    return path


def models_folder() -> Path:
    """Where downloaded models go: LOCALSPEC_MODELS, the checkout's models/, or user data."""
    chosen = os.environ.get("LOCALSPEC_MODELS")
    if chosen:
        return _expand(chosen)
    return CHECKOUT / "models" if in_checkout() else _user_folder("data") / "models"


def history_file() -> Path:
    """Where the chat keeps what was typed."""
    return _user_folder("data") / "chat_history"


def cache_folder() -> Path:
    """Where files that can be made again go: LOCALSPEC_CACHE, else the user's cache folder."""
    chosen = os.environ.get("LOCALSPEC_CACHE")
    return _expand(chosen) if chosen else _user_folder("cache")


def hub_cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloaded: HF_HUB_CACHE, else `hub` in HF_HOME."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not chosen:
        home = os.environ.get("HF_HOME")
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        chosen = os.path.join(home or os.path.join(caches, "huggingface"), "hub")
    return Path(os.path.expandvars(os.path.expanduser(chosen)))


def _expand(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileProblem(
            f"{path} names no folder: the home folder is unknown.",
            "Set HOME, or LOCALSPEC_CACHE and LOCALSPEC_MODELS to folders of your choice.",
        ) from error


def _user_folder(kind: str) -> Path:
    home = _expand("~")
    if sys.platform == "darwin":
        base = home / "Library" / ("Caches" if kind == "cache" else "Application Support")
    else:
        variable, fallback = {
            "cache": ("XDG_CACHE_HOME", home / ".cache"),
            "data": ("XDG_DATA_HOME", home / ".local" / "share"),
        }[kind]
        base = Path(os.environ.get(variable) or fallback)
    return base / "localspec"

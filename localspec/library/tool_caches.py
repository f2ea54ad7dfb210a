"""Model folders of other tools (Hugging Face, llama.cpp, LM Studio, Ollama, Jan, GPT4All) and ours.

Folders, manifests and settings are read in place; nothing is written or moved.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.core import paths
from localspec.core.files import read_at_most
from localspec.core.paths import bundled_folder, folder_from, home, hub_cache_folder, xdg_folder
from localspec.hub.provenance import SHA256, Provenance, read_record
from localspec.library.scan import (
    DANGLING,
    LINKED,
    OUTSIDE,
    UNREADABLE,
    LocalModel,
    Scan,
    Source,
    is_model_file,
)
from localspec.metadata.filenames import MAX_PARTS, parts_of

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")

_MAX_CHILDREN = 16  # manifests in a list of Ollama's: one for each kind of machine
_MAX_TEXT = 1 << 20  # bytes of a manifest or a settings file
_REPO = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)
_BROKEN = "manifests that make no sense"

Files = Iterator[LocalModel | None]  # None for a file that the scan left out


def files_of(scan: Scan, chosen: Collection[Source], folders: Iterable[Path]) -> Files:
    """The model files of one source; a folder of two ``chosen`` ones is searched once."""
    match scan.source:
        case "localspec":
            return _below([paths.models_folder()], scan, leaves=True)
        case "hugging face":
            return _hub_cache(scan, scan.begin(hub_cache_folder()))
        case "llama.cpp":
            return _llama_cpp(scan, with_hub="hugging face" not in chosen)
        case "lm studio":
            return _lm_studio(scan)
        case "ollama":
            return _ollama(scan)
        case "jan":
            return _jan(scan)
        case "gpt4all":
            return _gpt4all(scan)
        case "bundled":
            return _below([bundled_folder()], scan, "demo/")
        case "folder":
            return _below(folders, scan, leaves=True)


def _below(folders: Iterable[Path], scan: Scan, prefix: str = "", *, leaves: bool = False) -> Files:
    """The model files below folders of any layout, named by their paths in there.

    ``leaves``: a link may lead out of the folder, which is the user's own.
    """
    for folder in map(scan.begin, folders):
        for path in scan.gguf_files(folder):
            name = prefix + path.relative_to(folder).as_posix()
            origin = _origin(path)
            sha256, repo = (origin.sha256, origin.repo) if origin else (None, None)
            file = scan.file(path, name, None if leaves else [folder], sha256, repo)
            unverified = origin is not None and origin.checked == "size"
            yield replace(file, unverified=True) if file and unverified else file


def _hub_cache(scan: Scan, root: Path) -> Files:
    for folder in map(Path, scan.entries(root)):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        snapshots = folder / "snapshots"
        if not folder.name.startswith("models--"):
            continue
        if os.path.islink(folder):
            scan.leave_out(LINKED, folder)
            continue
        # A blob may be a link on to the store that all repositories of the cache share.
        within = [snapshots, folder / "blobs", root / "blobs"]
        for path in scan.gguf_files(snapshots):
            name = "/".join((repo, *path.relative_to(snapshots).parts[1:]))
            yield scan.file(path, name, within, _blob_hash(path), _as_repo(repo))


def _llama_cpp(scan: Scan, with_hub: bool) -> Files:
    """LLAMA_CACHE, else the Hugging Face cache; older builds kept flat files of their own."""
    roots = [paths.system_folder("cache") / "llama.cpp"]
    if chosen := folder_from("LLAMA_CACHE"):
        roots.insert(0, chosen)
    elif with_hub:
        roots.insert(0, hub_cache_folder())
    for root in map(scan.begin, roots):
        yield from _hub_cache(scan, root)
        for path in scan.gguf_files(root, depth=0):
            yield scan.file(path, path.name, [root])


def _lm_studio(scan: Scan) -> Files:
    pointer = _absolute(_read_text(home() / ".lmstudio-home-pointer").strip())
    older = home() / ".cache" / "lm-studio"
    usual = older if os.path.isdir(older) else home() / ".lmstudio"
    base = folder_from("LMSTUDIO_HOME") or pointer or usual
    moved = _absolute(_read_json(base / "settings.json").get("downloadsFolder"))
    for root in map(scan.begin, dict.fromkeys([base / "models", moved or base / "models"])):
        for path in scan.gguf_files(root):
            parts = path.relative_to(root).parts
            repo = _as_repo("/".join(parts[:2])) if len(parts) > 2 else None
            yield scan.file(path, "/".join(parts), [root], repo=repo)


def _ollama(scan: Scan) -> Files:
    chosen = folder_from("OLLAMA_MODELS")
    roots = [chosen] if chosen else [home() / ".ollama" / "models", OLLAMA_SERVICE]
    for root in map(scan.begin, roots):
        named: set[str] = set()
        for tree in (root / "manifests-v2", root / "manifests"):
            for path in scan.files(tree, depth=3):
                parts = path.relative_to(tree).parts
                name, repo = _ollama_name(*parts) if len(parts) == 4 else ("", None)
                if name and name not in named:
                    if file := _ollama_model(scan, root, path, name, repo):
                        named.add(name)
                        yield file


def _ollama_name(host: str, namespace: str, model: str, tag: str) -> tuple[str, str | None]:
    """Ollama's name for the model of a manifest, and its repository on the Hub."""
    if host in ("registry.ollama.ai", "ollama.com"):
        return f"{model}:{tag}" if namespace == "library" else f"{namespace}/{model}:{tag}", None
    repo = f"{namespace}/{model}" if host in ("hf.co", "huggingface.co") else None
    return f"{host}/{namespace}/{model}:{tag}", repo


def _ollama_model(
    scan: Scan, root: Path, path: Path, name: str, repo: str | None
) -> LocalModel | None:
    """The first GGUF model of a manifest, or of the manifests that it lists."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        scan.leave_out(OUTSIDE, path)
        return None
    manifest = _read_json(path)
    if not manifest:
        readable = _BROKEN if os.access(path, os.R_OK) else UNREADABLE
        scan.leave_out(readable if os.path.exists(path) else DANGLING, path)
    listed = [manifest]
    for child in _dictionaries(manifest.get("manifests"))[:_MAX_CHILDREN]:
        if child.get("format") in (None, "", "gguf"):
            blob = _blob(root, child.get("digest"))
            listed.append(child if "layers" in child or not blob else _read_json(blob[0]))
    for layer in (layer for each in listed for layer in _dictionaries(each.get("layers"))):
        if layer.get("mediaType") == "application/vnd.ollama.image.model":
            blob = _blob(root, layer.get("digest"))
            file = blob and scan.file(blob[0], name, [root / "blobs"], blob[1], repo)
            if file:
                return file
    return None


def _blob(root: Path, digest: object) -> tuple[Path, str] | None:
    """Path and hash of an Ollama blob; None for anything else, which could name another file."""
    match = re.fullmatch(r"sha256[:-]([0-9a-f]{64})", digest) if isinstance(digest, str) else None
    return (root / "blobs" / f"sha256-{match[1]}", match[1]) if match else None


def _jan(scan: Scan) -> Files:
    data = paths.system_folder("data") / "Jan"
    moved = _absolute(_read_json(data / "settings.json").get("data_folder"))
    root = scan.begin(folder_from("JAN_DATA_FOLDER") or moved or data / "data")
    models = root / "llamacpp" / "models"
    for path in scan.files(models):
        if path.name != "model.yml":
            continue
        line = re.search(r"^model_path:(.+)$", _read_text(path), re.MULTILINE)
        if line is None:
            continue
        place = Path(line[1].strip().strip("'\""))
        outside = place.is_absolute()  # the user's own file, which Jan did not copy
        for part in filter(is_model_file, parts_of(root / place)[:MAX_PARTS]):
            name = path.parent.relative_to(models).as_posix()
            yield scan.file(part, name, [part.parent if outside else root])


def _gpt4all(scan: Scan) -> Files:
    settings = xdg_folder("config") or home() / ".config"
    text = _read_text(settings / "nomic.ai" / "GPT4All.ini")
    line = re.search(r"^modelPath=(.+)$", text, re.MULTILINE)
    moved = _absolute(line[1].strip()) if line else None
    own = moved or paths.system_folder("data") / "nomic.ai" / "GPT4All"
    for root in map(scan.begin, [own, home() / ".cache" / "gpt4all"]):
        for path in scan.gguf_files(root, depth=0):
            if not path.name.startswith("incomplete-"):
                yield scan.file(path, path.name, [root])


def _blob_hash(path: Path) -> str | None:
    """The SHA-256 by which a Hugging Face cache names the blob that a link leads to."""
    try:
        target = Path(os.readlink(path))
    except (OSError, ValueError):
        return None
    return target.name if target.parent.name == "blobs" and SHA256.fullmatch(target.name) else None


def _origin(path: Path) -> Provenance | None:
    """The record that a download wrote next to the file, unless the file was replaced."""
    try:
        record = read_record(path)
        return record if record and record.size == path.stat().st_size else None
    except (OSError, ValueError):
        return None


def _as_repo(text: str) -> str | None:
    return text if _REPO.fullmatch(text) else None


def _dictionaries(value: object) -> list[Mapping[str, Any]]:
    items = value[:MAX_PARTS] if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]


def _absolute(value: object) -> Path | None:
    path = Path(value) if isinstance(value, str) else None
    return path if path and path.is_absolute() else None


def _read_text(path: Path) -> str:
    """A small file as text; nothing for one that is absent, unreadable, large or no file."""
    try:
        return read_at_most(path, _MAX_TEXT).decode("utf-8-sig")
    except (OSError, ValueError):
        return ""


def _read_json(path: Path) -> Mapping[str, Any]:
    """The object in a small JSON file; an empty one without it."""
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

"""Model folders of other tools (Hugging Face, llama.cpp, LM Studio, Ollama, Jan, GPT4All) and ours.

Folders, manifests and settings are read in place; nothing is written or moved.
"""

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from localspec.core.paths import hub_cache_folder, models_folder
from localspec.hub.provenance import SHA256, read_record
from localspec.library.scan import (
    DANGLING,
    LINKED,
    OUTSIDE,
    UNREADABLE,
    FoundFile,
    Scan,
    names_a_model,
    read_json,
    read_text,
)
from localspec.metadata.filenames import MAX_PARTS, PART_NAME, part_name

Source = Literal[
    "localspec", "hugging face", "llama.cpp", "lm studio", "ollama", "jan", "gpt4all", "folder"
]
SOURCES: tuple[Source, ...] = get_args(Source)

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")

_MAX_CHILDREN = 16  # manifests in a list of Ollama's: one for each kind of machine
_REPO = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)
_BROKEN = "manifests that make no sense"

Files = Iterator[FoundFile | None]  # None for what the scan has left out


def files_of(source: Source, scan: Scan, chosen: Collection[Source]) -> Files:
    """The model files of a tool; where two tools share a folder, once for all that are chosen."""
    if source == "llama.cpp":
        return _llama_cpp(scan, with_hub="hugging face" not in chosen)
    return _SEARCHES[source](scan)


def files_in(folders: Iterable[Path], scan: Scan) -> Files:
    """The model files below folders of anyone's, named by their paths in there."""
    for folder in map(scan.begin, folders):
        for path in scan.gguf_files(folder):
            name = path.relative_to(folder).as_posix()
            sha256, repo = _origin(path)
            yield scan.file(path, name, [folder], sha256, repo)


def _localspec(scan: Scan) -> Files:
    return files_in([models_folder()], scan)


def _hugging_face(scan: Scan) -> Files:
    return _hub_cache(scan, scan.begin(hub_cache_folder()))


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
    roots = [_cache_folder() / "llama.cpp"]
    if chosen := _from_environment("LLAMA_CACHE"):
        roots.insert(0, chosen)
    elif with_hub:
        roots.insert(0, hub_cache_folder())
    for root in map(scan.begin, roots):
        yield from _hub_cache(scan, root)
        for path in scan.gguf_files(root, depth=0):
            yield scan.file(path, path.name, [root])


def _lm_studio(scan: Scan) -> Files:
    home = _from_environment("LMSTUDIO_HOME") or _absolute(
        read_text(_home() / ".lmstudio-home-pointer").strip()
    )
    if home is None:
        older = _home() / ".cache" / "lm-studio"
        home = older if os.path.isdir(older) else _home() / ".lmstudio"
    moved = _absolute(read_json(home / "settings.json").get("downloadsFolder"))
    for root in map(scan.begin, dict.fromkeys([home / "models", moved or home / "models"])):
        for path in scan.gguf_files(root):
            parts = path.relative_to(root).parts
            repo = _as_repo("/".join(parts[:2])) if len(parts) > 2 else None
            yield scan.file(path, "/".join(parts), [root], repo=repo)


def _ollama(scan: Scan) -> Files:
    chosen = _from_environment("OLLAMA_MODELS")
    for root in map(
        scan.begin, [chosen] if chosen else [_home() / ".ollama" / "models", OLLAMA_SERVICE]
    ):
        named: set[str] = set()
        for tree in (root / "manifests-v2", root / "manifests"):
            for path in scan.files(tree, depth=3):
                if len(path.relative_to(tree).parts) != 4:
                    continue
                host, namespace, model, tag = path.relative_to(tree).parts
                name, repo = f"{model}:{tag}", None
                if host not in ("registry.ollama.ai", "ollama.com"):
                    name = f"{host}/{namespace}/{name}"
                    repo = f"{namespace}/{model}" if host in ("hf.co", "huggingface.co") else None
                elif namespace != "library":
                    name = f"{namespace}/{name}"
                if name in named:
                    continue
                if file := _ollama_model(scan, root, path, name, repo):
                    named.add(name)
                    yield file


def _ollama_model(
    scan: Scan, root: Path, path: Path, name: str, repo: str | None
) -> FoundFile | None:
    """The first GGUF model of a manifest, or of the manifests that it lists."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        scan.leave_out(OUTSIDE, path)
        return None
    manifest = read_json(path)
    if not manifest:
        readable = _BROKEN if os.access(path, os.R_OK) else UNREADABLE
        scan.leave_out(readable if os.path.exists(path) else DANGLING, path)
    listed = [manifest]
    for child in _dictionaries(manifest.get("manifests"))[:_MAX_CHILDREN]:
        if child.get("format") in (None, "", "gguf"):
            blob = _blob(root, child.get("digest"))
            listed.append(child if "layers" in child or not blob else read_json(blob[0]))
    for layer in (layer for each in listed for layer in _dictionaries(each.get("layers"))):
        if layer.get("mediaType") == "application/vnd.ollama.image.model":
            blob = _blob(root, layer.get("digest"))
            file = blob and scan.file(blob[0], name, [root / "blobs"], blob[1], repo)
            if file:
                return file
    return None


def _blob(root: Path, digest: object) -> tuple[Path, str] | None:
    """Path and hash of an Ollama blob; None for what is no digest, lest it name another file."""
    match = re.fullmatch(r"sha256[:-]([0-9a-f]{64})", digest) if isinstance(digest, str) else None
    return (root / "blobs" / f"sha256-{match[1]}", match[1]) if match else None


def _jan(scan: Scan) -> Files:
    data = _data_folder() / "Jan"
    moved = _absolute(read_json(data / "settings.json").get("data_folder"))
    root = scan.begin(_from_environment("JAN_DATA_FOLDER") or moved or data / "data")
    models = root / "llamacpp" / "models"
    for path in scan.files(models):
        if path.name != "model.yml":
            continue
        line = re.search(r"^model_path:(.+)$", read_text(path), re.MULTILINE)
        if line is None:
            continue
        place = Path(line[1].strip().strip("'\""))
        model = root / place
        outside = place.is_absolute()  # the user's own file, which Jan imported where it was
        for part in _with_other_parts(model):
            if names_a_model(part):
                name = path.parent.relative_to(models).as_posix()
                yield scan.file(part, name, [part.parent if outside else root])


def _gpt4all(scan: Scan) -> Files:
    settings = _from_environment("XDG_CONFIG_HOME") or _home() / ".config"
    text = read_text(settings / "nomic.ai" / "GPT4All.ini")
    line = re.search(r"^modelPath=(.+)$", text, re.MULTILINE)
    moved = _absolute(line[1].strip()) if line else None
    own = moved or _data_folder() / "nomic.ai" / "GPT4All"
    for root in map(scan.begin, [own, _home() / ".cache" / "gpt4all"]):
        for path in scan.gguf_files(root, depth=0):
            if not path.name.startswith("incomplete-"):
                yield scan.file(path, path.name, [root])


_SEARCHES: dict[Source, Callable[[Scan], Files]] = {
    "localspec": _localspec,
    "hugging face": _hugging_face,
    "lm studio": _lm_studio,
    "ollama": _ollama,
    "jan": _jan,
    "gpt4all": _gpt4all,
}


def _with_other_parts(path: Path) -> list[Path]:
    part = PART_NAME.fullmatch(path.name)
    if part is None:
        return [path]
    count = min(int(part[3]), MAX_PARTS)
    return [path.with_name(part_name(part[1], n, int(part[3]))) for n in range(1, count + 1)]


def _blob_hash(path: Path) -> str | None:
    """The SHA-256 by which a Hugging Face cache names the blob that a link leads to."""
    try:
        target = Path(os.readlink(path))
    except (OSError, ValueError):
        return None
    return target.name if target.parent.name == "blobs" and _is_sha256(target.name) else None


def _origin(path: Path) -> tuple[str | None, str | None]:
    """SHA-256 and repository that a download recorded beside the file, unless it was replaced."""
    try:
        record = read_record(path)
        if record is None or record.size != path.stat().st_size:
            return None, None
    except (OSError, ValueError):
        return None, None
    return record.sha256, record.repo


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and SHA256.fullmatch(value) is not None


def _as_repo(value: object) -> str | None:
    return value if isinstance(value, str) and _REPO.fullmatch(value) else None


def _dictionaries(value: object) -> list[Mapping[str, Any]]:
    items = value[:MAX_PARTS] if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]


def _absolute(value: object) -> Path | None:
    path = Path(value) if isinstance(value, str) else None
    return path if path and path.is_absolute() else None


def _from_environment(variable: str, *below: str) -> Path | None:
    """The folder in a variable, read now, since tests and notebooks change it."""
    value = os.environ.get(variable)
    return Path(os.path.expandvars(os.path.expanduser(value)), *below) if value else None


def _home() -> Path:
    return Path(os.path.expanduser("~"))


def _cache_folder() -> Path:
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches"
    return _from_environment("XDG_CACHE_HOME") or _home() / ".cache"


def _data_folder() -> Path:
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support"
    return _from_environment("XDG_DATA_HOME") or _home() / ".local" / "share"

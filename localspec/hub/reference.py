"""Hub references such as hf:org/repo:Q4_K_M: their spellings, and the choice of files by them."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn
from urllib.parse import parse_qs, quote, unquote, urlsplit

from localspec.core.errors import HubProblem, UsageError
from localspec.core.formatting import one_line
from localspec.metadata import filenames

MAX_PATH = 1024  # characters of a path inside a repository
MAX_NAME = 200  # bytes of each folder or file name; file systems have 255, ours add a suffix
SHOWN_CHOICES = 8
COMPARED_NAMES = 1000  # of a repository, with a misspelt one
DEFAULT_TAGS = ("Q4_K_M", "Q8_0")

HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
EXPECTED = "Write hf:org/repo, hf:org/repo:Q4_K_M or hf:org/repo/file.gguf."

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPO = re.compile(rf"{_WORD}/{_WORD}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+=-]{0,127}")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHORT = re.compile(rf"({_WORD}/{_WORD})(?:@([^@:/]+))?(?::([^:/]*))?")
_LONG = re.compile(r"([^/@:]+/[^/@:]+)(?:@(refs/pr/\d+|[^/:@]+))?(?::([^/]*)|/(.*))?", re.DOTALL)
# Words before a tag that name a way of quantising, not a model.
_PREFIXES = ("ud", "i1", "imat")


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on the Hub, as the user named it: one file, or a quantisation, or neither.

    `file` is a path inside the repository. Raises UsageError for invalid names, so that no path
    made from a reference leaves its folder.
    """

    repo: str
    file: str | None = None
    tag: str | None = None
    revision: str = "main"

    def __post_init__(self) -> None:
        if not _is_repo(self.repo):
            _refuse(self.repo, "is no repository: expected the form org/repo")
        if self.file is not None and self.tag is not None:
            _refuse(self.file, "cannot have a quantisation tag as well")
        if self.file is not None and not (is_safe(self.file) and _is_gguf(self.file)):
            _refuse(self.file, "is no path of a .gguf file inside a repository")
        if self.tag is not None and not _TAG.fullmatch(self.tag):
            _refuse(self.tag, "is no quantisation tag: expected one such as Q4_K_M")
        if not _REVISION.fullmatch(self.revision) or ".." in self.revision:
            _refuse(self.revision, "is no revision: expected a branch, a tag or a commit")

    def __str__(self) -> str:
        """The shortest spelling that no existing path can change."""
        revision = "" if self.revision == "main" else f"@{quote(self.revision, safe='')}"
        rest = f"/{self.file}" if self.file else f":{self.tag}" if self.tag else ""
        return f"hf:{self.repo}{revision}{rest}"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: `size` in bytes, `sha256` in lower-case hex.

    `sha256` is None if the Hub lists none, as for small files outside LFS.
    """

    path: str
    size: int
    sha256: str | None


def same_repo(repo: str, other: str | None) -> bool:
    """Whether two names are those of one repository: the Hub ignores their case."""
    return other is not None and repo.lower() == other.lower()


def parse_reference(name: str) -> Reference | None:
    """The reference that `name` spells, None for a path: one that exists wins, but over hf:."""
    lower = name.lower()
    if lower.startswith("hf:"):
        return _parse_long(name, name[3:].removeprefix("//"))
    if lower.startswith(("https://", "http://")):
        return _parse_address(name)
    if os.path.lexists(name):
        return None
    for host in HUB_HOSTS:
        if lower.startswith(f"{host}/"):
            return _parse_long(name, name[len(host) + 1 :])
    found = _SHORT.fullmatch(name)
    if found is None or not _is_repo(found[1]) or (found[3] is None and _is_gguf(name)):
        return None
    return Reference(found[1], None, found[3], unquote(found[2] or "main"))


def is_safe(path: str) -> bool:
    """Whether a path inside a repository stays inside any folder, and has no hidden names."""
    names = path.split("/")
    return (
        len(path) <= MAX_PATH
        and path.isprintable()
        and not set(path) & {"\\", ":"}
        and not any(not name or name[0] == "." or name != name.strip() for name in names)
        and all(len(name.encode()) <= MAX_NAME for name in names)
    )


def choose_files(reference: Reference, listing: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The file of a reference, or all parts in order, no sidecar; raises HubProblem."""
    models = _models(listing)
    if not models:
        raise HubProblem(
            f"{reference.repo} holds no GGUF file.",
            "Look for a repository of the same model whose name ends in -GGUF.",
        )
    if reference.file is not None:
        return _complete(reference, _by_name(reference, reference.file, models))
    plain = {
        stem: parts for stem, parts in models.items() if not filenames.is_sidecar(parts[0].path)
    }
    # A repository that has prediction heads alone is named for them.
    plain = plain or {
        stem: parts for stem, parts in models.items() if filenames.heads_kind(parts[0].path)
    }
    if not plain:
        raise HubProblem(
            f"{reference.repo} holds only sidecars of a model: {_listed(list(models))}.",
            "Look for the repository of the model itself.",
        )
    if reference.tag is not None:
        return _complete(reference, _by_tag(reference, reference.tag, plain))
    for tag in DEFAULT_TAGS:
        if _matching(tag, plain):
            return _complete(reference, _by_tag(reference, tag, plain))
    return _complete(reference, next(iter(plain.values())))


def _refuse(text: str, sentence: str) -> NoReturn:
    raise UsageError(f"'{one_line(text[:200])}' {sentence}.", EXPECTED)


def _is_repo(repo: str) -> bool:
    """The Hub's own rule for names."""
    return bool(_REPO.fullmatch(repo)) and not re.search(r"--|\.\.|\.git$", repo)


def _is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")


def _parse_long(name: str, rest: str) -> Reference:
    found = _LONG.fullmatch(rest)
    if found is None:
        _refuse(name, "names no model on the Hub")
    repo, revision, tag, file = found.groups()
    return Reference(repo, _whole(file), tag, unquote(revision or "main"))


def _whole(file: str | None) -> str | None:
    """The file that is meant, also by a part that another tool cut."""
    return filenames.cut_from(file or "") or file or None


def _parse_address(name: str) -> Reference:
    try:
        address = urlsplit(name)
        own = urlsplit(os.environ.get("HF_ENDPOINT") or f"https://{HUB_HOSTS[0]}")
    except ValueError:
        _refuse(name, "is no web address")
    if not address.netloc or address.netloc.lower() not in (*HUB_HOSTS, own.netloc.lower()):
        _refuse(name, "is a web address, but none of the Hugging Face Hub")
    parts = [unquote(part) for part in address.path.strip("/").split("/")]
    if parts[0] in ("datasets", "spaces", "api") or len(parts) in (1, 3):
        _refuse(name, "is no page of a model")
    repo, rest = "/".join(parts[:2]), parts[2:]
    if not rest:
        shown = parse_qs(address.query).get("show_file_info", [None])[0]
        return Reference(repo, shown)
    if rest[0] not in ("blob", "resolve", "raw", "tree"):
        _refuse(name, "is no page of a model or of its files")
    return Reference(repo, _whole("/".join(rest[2:])), None, rest[1])


def _models(listing: Sequence[RemoteFile]) -> dict[str, list[RemoteFile]]:
    """The GGUF files by name, parts of a split model together, in the listing's order."""
    models: dict[str, list[RemoteFile]] = {}
    for file in listing:
        if is_safe(file.path) and _is_gguf(file.path):
            found = filenames.PART_NAME.fullmatch(file.path)
            models.setdefault(f"{found[1]}-of-{found[3]}" if found else file.path, []).append(file)
    return {name: sorted(parts, key=lambda part: part.path) for name, parts in models.items()}


def _by_name(
    reference: Reference, wanted: str, models: dict[str, list[RemoteFile]]
) -> list[RemoteFile]:
    """The file of this path; else in another case; else, without a folder, in any folder."""
    folded = wanted.lower()
    base = folded.rpartition("/")[2]
    paths = [(file.path, parts) for parts in models.values() for file in parts]
    for fits in (
        [parts for path, parts in paths if path == wanted],
        [parts for path, parts in paths if path.lower() == folded],
        [parts for path, parts in paths if base == folded == path.lower().rpartition("/")[2]],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            _ask(reference, f"'{one_line(wanted)}'", fits)
    firsts = {parts[0].path: parts[0].path.lower().rpartition("/")[2] for parts in models.values()}
    bases = list(dict.fromkeys(firsts.values()))[:COMPARED_NAMES]
    near = get_close_matches(base, bases, SHOWN_CHOICES, 0.6)
    choices = [path for name in near for path, known in firsts.items() if known == name]
    lead = "the nearest are" if near else "it has"
    raise HubProblem(
        f"{reference.repo} has no file {one_line(wanted)}; {lead} "
        f"{_listed(choices or list(firsts))}.",
        "Files are renamed at times: name one of these.",
    )


def _by_tag(
    reference: Reference, tag: str, models: dict[str, list[RemoteFile]]
) -> list[RemoteFile]:
    fits = _matching(tag, models)
    if not fits:
        found = (filenames.tag_of(parts[0].path) for parts in models.values())
        tags = list(dict.fromkeys(known for known in found if known is not None))
        near = get_close_matches(tag.upper(), [known.upper() for known in tags], 3, 0.5)
        first = sorted(tags, key=lambda known: known.upper() not in near)
        have = f"it has {_listed(first)}" if first else "its files name no quantisation"
        choice = first[0] if first else "Q4_K_M"
        raise HubProblem(
            f"{reference.repo} has no model with the quantisation {one_line(tag)}; {have}.",
            f"Try hf:{reference.repo}:{one_line(choice)}, or name the file."
            if first
            else f"Name the file: {_spelling(reference, next(iter(models.values())))}.",
        )
    if len(fits) > 1:
        _ask(reference, one_line(tag), fits)
    return fits[0]


def _matching(tag: str, models: dict[str, list[RemoteFile]]) -> list[list[RemoteFile]]:
    """Models with the tag between separators in their paths; those without a prefix first."""
    text = re.escape(tag.lower())
    stems = [(filenames.stem_of(parts[0].path).lower(), parts) for parts in models.values()]
    patterns = [rf"(?:^|[-./]){text}(?:[-./]|$)"]
    if filenames.QUANTISATION.fullmatch(tag):
        patterns.append(rf"_{text}$")  # some write model_q4_k_m.gguf
    for pattern in patterns:
        fits = [(stem, parts) for stem, parts in stems if re.search(pattern, stem)]
        if fits:
            prefix = rf"(?:^|[-./])(?:{'|'.join(_PREFIXES)})[-.]{text}(?:[-./]|$)"
            plain = [parts for stem, parts in fits if not re.search(prefix, stem)]
            return plain or [parts for _, parts in fits]
    return []


def _complete(reference: Reference, parts: list[RemoteFile]) -> tuple[RemoteFile, ...]:
    """All parts of a model; raises HubProblem if one is missing."""
    found = filenames.PART_NAME.fullmatch(parts[0].path)
    if found is None:
        return tuple(parts)
    total = int(found[3])
    if total > filenames.MAX_PARTS:
        raise HubProblem(
            f"{one_line(parts[0].path)} claims to be one of {total:,} parts.",
            "Choose another file, or another repository of the same model.",
        )
    numbered = [filenames.PART_NAME.fullmatch(part.path) for part in parts]
    have = [int(match[2]) for match in numbered if match]
    missing = sorted(set(range(1, min(total, len(have) + SHOWN_CHOICES + 1) + 1)) - set(have))
    if len(have) != total or missing:
        names = [filenames.part_name(found[1], number, total) for number in missing]
        raise HubProblem(
            f"{reference.repo} has {len(have)} of the {total} parts of a split model"
            f"{f'; missing: {_listed(names)}' if names else ''}.",
            "Choose another quantisation, or another repository of the same model.",
        )
    return tuple(parts)


def _ask(reference: Reference, what: str, fits: list[list[RemoteFile]]) -> NoReturn:
    raise HubProblem(
        f"{reference.repo} has {len(fits)} models that match {what}: "
        f"{_listed([parts[0].path for parts in fits])}.",
        f"Name one of them, such as {_spelling(reference, fits[0])}.",
    )


def _spelling(reference: Reference, parts: list[RemoteFile]) -> str:
    return one_line(str(Reference(reference.repo, parts[0].path, None, reference.revision)))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:SHOWN_CHOICES])
    more = len(names) - SHOWN_CHOICES
    return f"{shown} and {more:,} more" if more > 0 else shown

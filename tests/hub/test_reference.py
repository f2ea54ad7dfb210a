"""References: every spelling, no way out of a folder, and the choice among a repository's files."""

from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import HubProblem, LocalspecError, UsageError
from localspec.hub.reference import Reference, RemoteFile, choose_files, is_safe, parse_reference

REPO = "org/some-model-GGUF"
SHA = "0" * 64


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that no name happens to be a path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    return tmp_path


def listing(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 1, SHA) for path in paths]


def chosen(name: str, *paths: str) -> list[str]:
    reference = parse_reference(name)
    assert reference is not None
    return [file.path for file in choose_files(reference, listing(*paths))]


def clean(error: LocalspecError) -> LocalspecError:
    """The error, which must be one printable sentence with a next step."""
    assert error.message.endswith(".") and error.hint.endswith((".", "gguf"))
    assert error.message.isprintable() and error.hint.isprintable()
    return error


def refusal(name: str, *paths: str) -> HubProblem:
    with pytest.raises(HubProblem) as caught:
        chosen(name, *paths)
    clean(caught.value)
    return caught.value


# --- spellings ---


SPELLINGS = [
    ("hf:org/repo", Reference("org/repo")),
    ("hf://org/repo", Reference("org/repo")),
    ("HF:org/repo", Reference("org/repo")),
    ("org/repo", Reference("org/repo")),
    ("hf:org/repo:Q4_K_M", Reference("org/repo", tag="Q4_K_M")),
    ("org/repo:q8_0", Reference("org/repo", tag="q8_0")),
    ("org/repo@v1.0:q8_0", Reference("org/repo", tag="q8_0", revision="v1.0")),
    ("hf:org/repo/a.gguf", Reference("org/repo", "a.gguf")),
    ("hf:org/repo/sub/a b@c.GGUF", Reference("org/repo", "sub/a b@c.GGUF")),
    ("hf:org/repo@dev/a.gguf", Reference("org/repo", "a.gguf", revision="dev")),
    ("hf:org/repo@refs/pr/3/a.gguf", Reference("org/repo", "a.gguf", revision="refs/pr/3")),
    ("hf:org/repo@refs%2Fpr%2F3", Reference("org/repo", revision="refs/pr/3")),
    ("hf.co/org/repo:Q4_K_M", Reference("org/repo", tag="Q4_K_M")),
    ("huggingface.co/org/repo/a.gguf", Reference("org/repo", "a.gguf")),
    ("https://huggingface.co/org/repo", Reference("org/repo")),
    ("https://hf.co/org/repo/", Reference("org/repo")),
    ("https://huggingface.co/org/repo/tree/dev", Reference("org/repo", revision="dev")),
    (
        "https://huggingface.co/org/repo/blob/main/sub/a%20b.gguf",
        Reference("org/repo", "sub/a b.gguf"),
    ),
    (
        "https://huggingface.co/org/repo/resolve/refs%2Fpr%2F3/a.gguf?download=true",
        Reference("org/repo", "a.gguf", revision="refs/pr/3"),
    ),
    (
        "https://huggingface.co/org/repo?show_file_info=a.Q4_K_M.gguf",
        Reference("org/repo", "a.Q4_K_M.gguf"),
    ),
]


def test_spellings() -> None:
    assert [(name, parse_reference(name)) for name, _ in SPELLINGS] == SPELLINGS


PATHS = (
    "model.gguf", "folder/model.gguf", "folder/MODEL.GGUF", "./org/repo", "../org/repo", "/a/b",
    "~/models/a.gguf", "a/b/c", "model", "", ".", "a//b", "org/--repo", "ftp:org/repo",
    "org/repo\0", "one two/three",
)  # fmt: skip


def test_paths() -> None:
    assert {name: parse_reference(name) for name in PATHS} == dict.fromkeys(PATHS)


def test_what_exists_is_a_path(elsewhere: Path) -> None:
    (elsewhere / "org").mkdir()
    for name in ("org/repo", "org/repo:Q4_K_M"):
        assert parse_reference(name) is not None
        (elsewhere / name).write_bytes(b"")
        assert parse_reference(name) is None
        assert parse_reference(f"hf:{name}") is not None
    (elsewhere / "org/loose").symlink_to("nowhere")
    assert parse_reference("org/loose") is None


def test_a_mirror_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "http://mirror.example:8080/org/repo/blob/main/a.gguf"
    with pytest.raises(UsageError):
        parse_reference(name)
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example:8080/")
    assert parse_reference(name) == Reference("org/repo", "a.gguf")


MALFORMED = (
    "hf:", "hf:repo", "hf:org/", "hf:/repo", "hf:org/repo:", "hf:org/repo@", "hf:org/repo@x@y",
    "hf:org/repo:Q4_K_M:Q8_0", "hf:org/repo:Q4/a.gguf", "hf:org/repo/a.gguf:Q4_K_M",
    "hf:org/repo/a.bin", "hf:org/repo/folder", "hf:org/repo/../a.gguf", "hf:org/repo//a.gguf",
    "hf:org/repo/a/./b.gguf", "hf:../repo/a.gguf", "hf:org/../a.gguf", "hf:org/re..po",
    "hf:org/repo.git", "hf:org/-repo", "hf:org/repo@../x", "hf:org/repo@a..b",
    "hf:org/repo@%2e%2e/a.gguf", "hf:org/repo/a\\b.gguf", "hf:org/repo/C:a.gguf",
    "hf:org/repo/a\nb.gguf", "hf:org/repo/\x1b[2J.gguf", "hf:org/repo/\udc80.gguf",
    "hf:org/repo/" + "a" * 300 + ".gguf", "hf:org/repo/" + "a/" * 600 + "a.gguf",
    "hf:org/" + "a" * 100, "hf:org/repo:Q 4", "org/repo:", "org/repo:Q 4",
    "https://huggingface.co/", "https://huggingface.co/org", "https://huggingface.co/org/repo/x",
    "https://huggingface.co/org/repo/blob/main/..%2Fa.gguf",
    "https://huggingface.co/org/repo/commits/main", "https://huggingface.co/datasets/org/repo",
    "https://huggingface.co/org/repo/blob", "https://example.com/org/repo", "https:///org/repo",
    "https://[org/repo", "https://huggingface.co.evil.example/org/repo",
)  # fmt: skip


def test_malformed_spellings_are_refused() -> None:
    accepted = []
    for name in MALFORMED:
        try:
            accepted.append((name, parse_reference(name)))
        except UsageError as error:
            assert "hf:org/repo" in clean(error).hint, name
    assert not accepted


WORDS = st.from_regex(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,20}[A-Za-z0-9_])?", fullmatch=True)
NAMES = WORDS.filter(lambda w: "--" not in w and ".." not in w and not w.endswith(".git"))
FILES = st.lists(
    st.text(st.characters(exclude_characters="/\\:", exclude_categories=["C", "Z"]), max_size=20),
    min_size=1,
    max_size=4,
).map(lambda names: "/".join(names) + ".gguf")
REVISIONS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._/+=-]{0,20}", fullmatch=True)


@given(
    NAMES,
    NAMES,
    st.one_of(st.none(), FILES.filter(is_safe)),
    st.one_of(st.none(), st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)),
    st.one_of(st.just("main"), REVISIONS.filter(lambda revision: ".." not in revision)),
)
def test_a_reference_survives_being_written(
    org: str, name: str, file: str | None, tag: str | None, revision: str
) -> None:
    reference = Reference(f"{org}/{name}", file, None if file else tag, revision)
    assert parse_reference(str(reference)) == reference


@given(st.one_of(st.text(), st.text(alphabet="ab./\\:@%2Ehfg~ "), FILES), st.sampled_from("ab"))
def test_nothing_escapes(text: str, prefix: str) -> None:
    starts = ["hf:", "hf:org/repo/", "hf:org/repo@", "https://huggingface.co/org/repo/blob/main/"]
    for start in [*starts, "https://huggingface.co/", "org/repo:", ""]:
        try:
            reference = parse_reference(start + text)
        except UsageError as error:
            clean(error)
            continue
        if reference is None:
            continue
        names = f"{reference.repo}/{reference.file or 'x'}".split("/")
        assert not set(names) & {"", ".", ".."}
        assert ".." not in reference.revision and len(reference.repo.split("/")) == 2
        inside = PurePosixPath("models", *names)
        assert inside.is_relative_to("models") and str(inside).isprintable()


UNSAFE = (
    ("../repo",), ("org/repo/more",), ("org/repo", "../a.gguf"), ("org/repo", "/a.gguf"),
    ("org/repo", "a.gguf", "Q4_K_M"), ("org/repo", None, "../x"), ("org/repo", "a.bin"),
    ("org/repo", None, None, "a/../b"), ("org/repo", None, None, ""),
)  # fmt: skip


def test_an_unsafe_reference_cannot_be_made() -> None:
    made = []
    for fields in UNSAFE:
        with suppress(UsageError):
            made.append(Reference(*fields))
    assert not made


# --- quantisations ---


def test_tags_ignore_case_and_want_separators() -> None:
    files = ("x-Q4_K_M.gguf", "x-Q4_K_S.gguf", "x-Q8_0.gguf", "x.q6_k.gguf", "Q5_K_M/x.gguf")
    assert chosen(f"{REPO}:q4_k_m", *files) == ["x-Q4_K_M.gguf"]
    assert chosen(f"{REPO}:Q6_K", *files) == ["x.q6_k.gguf"]
    assert chosen(f"{REPO}:Q5_K_M", *files) == ["Q5_K_M/x.gguf"]
    error = refusal(f"{REPO}:Q4_K", *files)
    assert "Q4_K_M, Q4_K_S" in error.message and "Q4_K_" in error.hint
    refusal(f"{REPO}:8_0", *files)
    refusal(f"{REPO}:x-Q8", *files)


def test_an_underscore_before_the_tag() -> None:
    assert chosen(f"{REPO}:Q4_K_M", "model_q4_k_m.gguf", "model_iq4_k_m.gguf") == [
        "model_q4_k_m.gguf"
    ]
    refusal(f"{REPO}:K_M", "model_q4_k_m.gguf")


def test_the_plain_name_comes_before_prefixed_ones() -> None:
    both = ("x-UD-Q8_0.gguf", "x-Q8_0.gguf", "x.i1-Q8_0.gguf")
    assert chosen(f"{REPO}:Q8_0", *both) == ["x-Q8_0.gguf"]
    assert chosen(f"{REPO}:ud-q8_0", *both) == ["x-UD-Q8_0.gguf"]
    assert chosen(f"{REPO}:Q8_0", "x-UD-Q8_0.gguf") == ["x-UD-Q8_0.gguf"]


def test_a_tag_that_fits_several_models_is_asked_about() -> None:
    error = refusal(f"{REPO}:Q8_0", "base-Q8_0.gguf", "base-it-Q8_0.gguf", "base-Q4_0.gguf")
    assert "2 models that match Q8_0: base-Q8_0.gguf, base-it-Q8_0.gguf." in error.message
    assert f"hf:{REPO}/base-Q8_0.gguf" in error.hint


def test_without_a_tag() -> None:
    assert chosen(REPO, "x-BF16.gguf", "x-Q4_K_M.gguf", "x-Q8_0.gguf") == ["x-Q4_K_M.gguf"]
    assert chosen(REPO, "x-BF16.gguf", "x-q8_0.gguf") == ["x-q8_0.gguf"]
    assert chosen(REPO, "mmproj-x.gguf", "x-F16.gguf", "x-IQ1_S.gguf") == ["x-F16.gguf"]
    refusal(REPO, "base-Q4_K_M.gguf", "chat-Q4_K_M.gguf", "x-Q8_0.gguf")


def test_near_tags_are_listed_first() -> None:
    error = refusal(f"{REPO}:Q4_KM", *(f"x-{tag}.gguf" for tag in ("BF16", "Q8_0", "Q4_K_M")))
    assert "it has Q4_K_M, " in error.message
    assert error.hint == f"Try hf:{REPO}:Q4_K_M, or name the file."
    error = refusal(f"{REPO}:Q4_K_M", "weights.gguf")
    assert "name no quantisation" in error.message and f"hf:{REPO}/weights.gguf" in error.hint


# --- sidecars ---


OTHERS = (
    "mmproj-x-Q4_K_M.gguf", "X-Q4_K_M-mmproj.gguf", "imatrix-Q4_K_M.gguf", "x.imatrix.gguf",
)  # fmt: skip
HEADS = (
    "mtp-x-Q4_K_M.gguf", "MTP/x-Q4_K_M.gguf", "eagle3-x-Q4_K_M.gguf", "X-DFlash-Q4_K_M.gguf",
    "sub/mtp/Q4_K_M.gguf",
)  # fmt: skip


def test_sidecars_are_never_chosen_beside_a_model() -> None:
    tag = f"{REPO}:Q4_K_M"
    for sidecar in OTHERS + HEADS:
        assert chosen(tag, sidecar, "x-Q4_K_M.gguf") == ["x-Q4_K_M.gguf"], sidecar
        assert chosen(REPO, sidecar, "x.gguf") == ["x.gguf"], sidecar
        refused = refusal(tag, sidecar, "x.gguf")
        assert "no model with the quantisation" in refused.message, sidecar
        assert chosen(f"hf:{REPO}/{sidecar}", sidecar) == [sidecar]  # asked for by name


def test_a_repository_of_nothing_but_heads_is_named_for_them() -> None:
    for sidecar in OTHERS:
        assert "only sidecars of a model" in refusal(REPO, sidecar).message, sidecar
    for sidecar in HEADS:
        assert chosen(REPO, sidecar) == chosen(f"{REPO}:q4_k_m", sidecar) == [sidecar]
        assert chosen(REPO, *OTHERS, sidecar) == [sidecar]


def test_a_whole_model_with_heads_inside_is_no_sidecar() -> None:
    whole = "Qwen3.6-35B-A3B-MTP-Q4_K_M.gguf"
    assert chosen(f"{REPO}:Q4_K_M", "mtp-Qwen3.6-35B-A3B-Q4_K_M.gguf", whole) == [whole]


# --- names ---


def test_a_file_by_name() -> None:
    files = ("x-Q4_K_M.gguf", "Q8_0/x-Q8_0.gguf", "README.md", "X-q4_k_m.gguf.txt")
    assert chosen(f"hf:{REPO}/x-Q4_K_M.gguf", *files) == ["x-Q4_K_M.gguf"]
    assert chosen(f"hf:{REPO}/X-Q4_k_m.gguf", *files) == ["x-Q4_K_M.gguf"]
    assert chosen(f"hf:{REPO}/x-q8_0.gguf", *files) == ["Q8_0/x-Q8_0.gguf"]
    assert chosen(f"hf:{REPO}/a.gguf", "a.gguf", "A.gguf", "b/a.gguf") == ["a.gguf"]
    error = refusal(f"hf:{REPO}/a.gguf", "b/a.gguf", "c/a.gguf")
    assert "2 models that match 'a.gguf': b/a.gguf, c/a.gguf" in error.message


def test_near_names_after_a_rename() -> None:
    error = refusal(f"hf:{REPO}/gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b-MXFP4-v2.gguf", "other.gguf")
    assert "has no file gpt-oss-20b-mxfp4.gguf" in error.message
    assert "nearest are gpt-oss-20b-MXFP4-v2.gguf." in error.message
    assert "other" not in error.message
    error = refusal(f"hf:{REPO}/zzz.gguf", *(f"model{n}.gguf" for n in range(50)))
    assert "it has model0.gguf" in error.message and "and 42 more." in error.message


def test_nothing_to_choose_from() -> None:
    for files in ((), ("README.md", "model.safetensors")):
        assert "no GGUF file" in refusal(REPO, *files).message


# --- split models ---


def parts(stem: str, total: int) -> list[str]:
    return [f"{stem}-{number:05d}-of-{total:05d}.gguf" for number in range(1, total + 1)]


def test_all_parts_of_a_split_model_in_order() -> None:
    three = parts("Q8_0/x-Q8_0", 3)
    mixed = [three[2], "x-Q4_K_M.gguf", three[0], *parts("Q8_0/x-Q8_0", 2)[:0], three[1]]
    assert chosen(f"{REPO}:q8_0", *mixed) == three
    for part in three:
        assert chosen(f"hf:{REPO}/{part}", *mixed) == three
    assert chosen(f"hf:{REPO}/x-q8_0-00001-of-00003.gguf", *mixed) == three
    assert chosen(REPO, *parts("x", 1)) == parts("x", 1)


def test_the_same_model_split_in_two_ways_is_asked_about() -> None:
    refusal(f"{REPO}:Q8_0", *parts("x-Q8_0", 2), *parts("x-Q8_0", 3))


def test_a_missing_part_is_named() -> None:
    first, second, third = parts("x-Q8_0", 3)
    error = refusal(f"{REPO}:Q8_0", third, first)
    assert "2 of the 3 parts" in error.message and f"missing: {second}." in error.message
    assert "1 of the 999 parts" in refusal(REPO, "x-00001-of-00999.gguf").message
    assert "claims to be one of 99,999" in refusal(REPO, "x-00001-of-99999.gguf").message
    assert "missing" in refusal(REPO, *parts("x", 2)[1:]).message
    refusal(REPO, "x-00000-of-00001.gguf")
    refusal(REPO, "x-00001-of-00000.gguf")


# --- names from strangers ---


def test_files_with_unsafe_paths_do_not_exist() -> None:
    unsafe = ("../x.gguf", "/x.gguf", "a/../x.gguf", "a\\x.gguf", "a\nb.gguf", "\x1b[0m.gguf")
    assert "no GGUF file" in refusal(REPO, *unsafe).message
    assert chosen(REPO, *unsafe, "x.gguf") == ["x.gguf"]


@given(st.lists(st.text(max_size=30).map(lambda name: f"{name}.gguf"), max_size=20))
def test_any_listing_gives_a_choice_or_one_sentence(paths: list[str]) -> None:
    for name in (REPO, f"{REPO}:Q4_K_M", f"hf:{REPO}/x.gguf"):
        reference = parse_reference(name)
        assert reference is not None
        try:
            files = choose_files(reference, listing(*paths))
        except HubProblem as error:
            clean(error)
        else:
            assert files and all(is_safe(file.path) for file in files)

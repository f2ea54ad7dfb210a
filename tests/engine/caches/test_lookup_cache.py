"""Lookup cache: answers and files kept from one start to the next, for one vocabulary."""

import hashlib
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.answer import Answer, collect
from localspec.core.errors import FileProblem
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.caches.lookup_cache import LookupCache, require_lookup_cache
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from tests.support.real_pair import TinyFiles, options, random_ids, slots_of

pytestmark = pytest.mark.llama

WARM = SamplingParams(temperature=0.8, seed=3)


@pytest.fixture
def alone(tiny: TinyFiles) -> Iterator[Engine]:
    """A target without a draft."""
    with Engine.load(options(tiny.target)) as engine:
        yield engine


def answer(engine: Engine, prompt: list[int], length: object = "auto") -> Answer:
    """One answer by a clock on which every pass takes as long: drafting pays, however noisy."""
    engine.target.truncate(0)
    asked = GenerateOptions(WARM, length, max_tokens=60)  # type: ignore[arg-type]
    return collect(stream_generate(engine, prompt, asked, clock=itertools.count().__next__))


def test_an_answer_again_is_copied_and_the_same(alone: Engine) -> None:
    prompt = random_ids(30)
    plain = answer(alone, prompt, 0)
    with LookupCache(alone, pytest.fail):
        first, again = answer(alone, prompt), answer(alone, prompt)
    assert first.tokens == again.tokens == plain.tokens
    assert again.stats.sources["history"].accepted > 30 > 2 * again.stats.rounds - 10
    assert again.stats.rounds < first.stats.rounds


def test_slots_share_it(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, parallel=2)) as engine, LookupCache(engine, pytest.fail):
        one, other = slots_of(engine)
        assert one.history is other.history is engine.history is not None


def test_what_is_off_is_neither_used_nor_kept(alone: Engine) -> None:
    with LookupCache(alone, pytest.fail):
        stream = stream_generate(
            alone, random_ids(9), GenerateOptions(WARM, "auto", prompt_lookup=False, max_tokens=20)
        )
        collect(stream)
        assert alone.history is not None and len(alone.history) == 0
        answer(alone, random_ids(9), 0)  # a plain answer may be drafted from later
        assert len(alone.history) > 0


def test_it_is_kept_in_a_file_of_its_owner(alone: Engine, tmp_path: Path) -> None:
    path, prompt = tmp_path / "lookup.bin", random_ids(30)
    with LookupCache(alone, pytest.fail, path):
        first = answer(alone, prompt)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    require_lookup_cache(path)
    with LookupCache(alone, pytest.fail, path):
        again = answer(alone, prompt)
        held = alone.history
    assert again.tokens == first.tokens and again.stats.sources["history"].accepted > 30
    before = path.read_bytes()
    with LookupCache(alone, pytest.fail, path):
        assert held is not alone.history and alone.history is not None and held is not None
        assert alone.history.tokens().tolist() == held.tokens().tolist()
    assert path.read_bytes() == before


@pytest.mark.parametrize("harm", ["short", "flipped", "long", "token", "other"])
def test_a_bad_file_is_told_and_written_anew(
    alone: Engine, tiny: TinyFiles, tmp_path: Path, harm: str
) -> None:
    path, told = tmp_path / "lookup.bin", list[str]()
    with LookupCache(alone, pytest.fail, path):
        answer(alone, random_ids(9))
    data = bytearray(path.read_bytes())
    assert alone.history is not None
    start = len(data) - 4 * len(alone.history.tokens())
    if harm == "short":
        del data[-3:]
    elif harm == "flipped":
        data[-1] ^= 1
    elif harm == "long":
        data += bytes(5 * 2**20)
    elif harm == "token":  # with the right sum
        data[start:] = alone.target.n_vocab.to_bytes(4, "little") + data[start + 4 :]
        data[start - 32 : start] = hashlib.sha256(data[start:]).digest()
    else:
        data[25] ^= 1  # of the digest of the vocabulary
    path.write_bytes(data)
    with LookupCache(alone, told.append, path):
        assert alone.history is not None and len(alone.history) == 0
    assert len(told) == 1 and "cannot be used" in told[0]
    with LookupCache(alone, pytest.fail, path):
        pass


def test_another_file_is_not_destroyed(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam")
    with pytest.raises(FileProblem, match="another file"):
        require_lookup_cache(path)
    require_lookup_cache(tmp_path / "new.bin")


def test_files_and_folders_of_text_are_looked_up(alone: Engine, tmp_path: Path) -> None:
    text = "".join(f"{hashlib.md5(bytes(i)).hexdigest()}\n" for i in range(400))
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / "a.txt").write_text(text)
    (folder / "empty.txt").write_text("")
    (folder / "b.bin").write_bytes(b"\xff\x00")
    (folder / ".git" / "c.txt").write_text(text)
    os.mkfifo(folder / "pipe")
    told = list[str]()
    with LookupCache(alone, told.append, files=[folder, folder / "a.txt"]):
        assert alone.history is not None
        held = len(alone.history)
        ids = alone.target.tokenize(text[:80], add_special=False, parse_special=False)
        found = [each.token for each in alone.history.continuation(ids[:20])]
    assert found[: len(ids) - 20] == ids[20:]
    assert told == [f"Files to look up: {held:,} tokens."]
    for bad in (tmp_path / "missing.txt", folder / "b.bin"):
        with pytest.raises(FileProblem, match="cannot be read"):
            LookupCache(alone, pytest.fail, files=[bad]).__enter__()

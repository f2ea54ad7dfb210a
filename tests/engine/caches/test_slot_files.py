"""Saved slots: what a client may name, and what is in the files of target and draft."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.chat.answer import collect
from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.engine.caches import slot_files
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.caches.slot_files import SlotFiles, erase
from localspec.engine.engine import Engine
from localspec.engine.generate import TextEngine, stream_generate
from localspec.llama.cache import state_file
from tests.engine.caches.test_prompt_cache import spoil
from tests.support.alike import alike
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import GREEDY, TinyFiles, options, random_ids, slots_of

pytestmark = pytest.mark.llama
PROMPT = random_ids(300)


def answered(slot: TextEngine) -> tuple[list[int], int, int]:
    """An answer, its cached tokens, and the tokens that the draft held before."""
    held = len(slot.draft.tokens) if slot.draft is not None else 0
    answer = collect(stream_generate(slot, PROMPT, GenerateOptions(GREEDY, 4, max_tokens=9)))
    return answer.tokens, answer.stats.cached_tokens, held


@pytest.mark.parametrize("count", [1, 2])
def test_a_restored_slot_goes_on_where_it_was_saved(
    demo_files: tuple[Path, Path], tmp_path: Path, count: int
) -> None:
    target, draft = (replace(options(path), parallel=count) for path in demo_files)
    with Engine.load(target, draft) as engine:
        slots = slots_of(engine)
        files = SlotFiles(tmp_path, engine)
        with pytest.raises(UsageError, match="read nothing"):
            files.save(slots[-1], "a")
        first = answered(slots[-1])
        assert first[1] == 0 < len(slots[-1].target.tokens)
        tokens, n_bytes = files.save(slots[-1], "a")
        written = sorted(path for path in tmp_path.iterdir() if path.is_file())
        assert [path.name for path in written] == ["a", "a.draft"]
        assert n_bytes == sum(path.stat().st_size for path in written)
        assert erase(slots[-1]) == tokens
        assert answered(slots[-1])[1:] == (0, 0)
        erase(slots[0])
        assert files.restore(slots[0], "a") == (tokens, n_bytes)
        again = answered(slots[0])
        assert again[0] == first[0] and again[1] == len(PROMPT) - 1 and again[2] >= len(PROMPT)


def test_a_recurrent_state_returns_to_the_end_of_the_prompt(
    architecture: Callable[[str], Path], tmp_path: Path
) -> None:
    with Engine.load(options(architecture("qwen35"))) as engine:
        files = SlotFiles(tmp_path, engine)
        first = answered(engine)
        saved = files.save(engine, "a")
        erase(engine)
        assert files.restore(engine, "a") == saved
        assert answered(engine)[:2] == (first[0], len(PROMPT) - 1)


def test_a_sliding_window_returns_to_a_document_that_was_saved(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", seed=2, layers=4, window=64, context_length=4096)
    given = options(model, ctx_size=2048, batch_size=64, ubatch_size=64, parallel=2)
    (tmp_path / "slots").mkdir()
    with Engine.load(given) as engine:
        first, second = slots_of(engine)
        files, document, answers = SlotFiles(tmp_path / "slots", engine), random_ids(800), []
        for slot, seed in ((first, 1), (second, 2)):
            prompt = [*document, *random_ids(96, seed=seed)]
            answer = stream_generate(slot, prompt, GenerateOptions(GREEDY, 0, max_tokens=9))
            answers.append(collect(answer).stats.cached_tokens)
            if slot is first:
                files.save(first, "a")
                files.restore(second, "a")
        assert answers == [0, len(document)]


@pytest.mark.parametrize("tried", [False, True])
def test_a_bad_state_spoils_no_other_slot(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    """Masked cells count too: 0 * NaN is NaN without flash attention."""
    if not tried:
        monkeypatch.setattr(state_file, "_require_numbers", lambda holder: None)
    folder, said = tmp_path / "slots", list[str]()
    folder.mkdir()
    given = options(tiny.target, parallel=3, flash_attention="off")
    with Engine.load(given, trial=False) as engine:
        files = SlotFiles(folder, engine, said.append)
        prefixes = PrefixCache(2**30)
        first, second, third = slots_of(engine)
        expected = [answered(slot)[0] for slot in (first, second)]
        files.save(first, "a")
        spoil(folder / "a", np.float16(np.nan))
        if tried:
            with pytest.raises(UsageError, match="a cannot be used: .* not numbers"):
                files.restore(first, "a")
        else:
            files.restore(first, "a")
            prefixes.vacate(first, "")  # the state waits in RAM
            prefixes.restore_best(third, PROMPT)
        assert [answered(slot)[0] for slot in (second, first)] == expected
        assert [f"{folder / 'a'} is damaged" in each for each in said] == [True] * (1 - tried)
        prefixes.restore_best(third, PROMPT)
        assert answered(third)[0] == expected[0]


@pytest.mark.parametrize(
    "position", [2**31, alike(2**32 - 2), 2**32 - 1, alike(2**31 - 1), 5000, 3]
)
def test_a_state_with_cells_outside_of_its_text_is_refused(
    demo_files: tuple[Path, Path], tmp_path: Path, position: int
) -> None:
    target, draft = (replace(options(path), parallel=2) for path in demo_files)
    with Engine.load(target, draft) as engine:
        first, second = slots_of(engine)
        files = SlotFiles(tmp_path, engine)
        expected = [answered(slot)[0] for slot in (first, second)]
        files.save(first, "a")
        for file in ("a", "a.draft"):
            whole = (tmp_path / file).read_bytes()
            move_cell(tmp_path / file, position)
            with pytest.raises(UsageError, match="its cells are not those of its tokens"):
                files.restore(first, "a")
            assert not (first.draft if file == "a.draft" else first.target).tokens  # type: ignore
            (tmp_path / file).write_bytes(whole)
            erase(first)
            assert [answered(slot)[0] for slot in (first, second)] == expected
        assert files.restore(second, "a") > (0, 0)


@pytest.mark.parametrize("position", [2**31, 2**32 - 2, 2**31 - 1])
def test_an_emptied_slot_has_no_cell_wherever_it_was(
    demo_files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    position: int,
) -> None:
    """Should a state come through the checks, it is gone with the next text."""
    monkeypatch.setattr(state_file, "_require_layout", lambda *given: None)
    with Engine.load(replace(options(demo_files[0]), parallel=2)) as engine:
        first, second = slots_of(engine)
        files, empty = SlotFiles(tmp_path, engine), first.target.state_bytes()
        expected = [answered(slot)[0] for slot in (first, second)]
        files.save(first, "a")
        move_cell(tmp_path / "a", position)
        with suppress(UsageError):
            files.restore(first, "a")
        erase(first)
        assert first.target.state_bytes() == empty
        assert [answered(slot)[0] for slot in (first, second)] == expected


def move_cell(file: Path, position: int) -> None:
    """Give the third cell of a saved state, without streams of its own, another position."""
    data = file.read_bytes()
    begin = 20 + int.from_bytes(data[16:20], "little")
    header, body = json.loads(data[20:begin]), bytearray(data[begin:])
    place = 4 * header["tokens"] + 8 + 8 + 2 * 12
    assert body[place : place + 8] == bytes([2, 0, 0, 0, 1, 0, 0, 0])
    body[place : place + 4] = position.to_bytes(4, "little")
    header["sha256"] = hashlib.sha256(body).hexdigest()
    text = json.dumps(header).encode()
    file.write_bytes(data[:16] + len(text).to_bytes(4, "little") + text + body)


def test_only_files_of_this_folder_and_this_model_are_used(
    demo_files: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    (tmp_path / "outside").write_text("mine")
    with Engine.load(options(demo_files[0])) as engine:
        files = SlotFiles(folder, engine)
        for name in ("../outside", "/outside", "", "..", ".a", "a/b", "a.draft", "a\n", "x" * 201):
            for act in (files.save, files.restore):
                with pytest.raises(UsageError, match="no name for a saved slot"):
                    act(engine, name)
        with pytest.raises(UsageError, match="No slot was saved as a"):
            files.restore(engine, "a")
        answered(engine)
        (folder / "a").write_text("mine")
        with pytest.raises(UsageError, match="would be overwritten"):
            files.save(engine, "a")
        with pytest.raises(UsageError, match="a cannot be used: it is"):
            files.restore(engine, "a")
        files.save(engine, "b")
    with Engine.load(options(demo_files[1])) as other:
        with pytest.raises(UsageError, match="another model"):
            SlotFiles(folder, other).restore(other, "b")


def test_a_save_that_fails_leaves_what_was_saved(
    demo_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    with Engine.load(*map(options, demo_files)) as engine:
        files = SlotFiles(folder, engine)
        answered(engine)
        (folder / ".b.99999999-0123abcd").touch()  # of a killed server
        files.save(engine, "a")
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert set(before) == {"a", "a.draft"}
        engine.target.truncate(200)
        write, calls = state_file.write_partial, list[Path]()

        def full(path: Path, *others: Any) -> int:
            calls.append(path)
            if len(calls) == 2:  # the draft's
                raise OSError(28, "No space left on device")
            return write(path, *others)

        monkeypatch.setattr(slot_files, "write_partial", full)
        with pytest.raises(UsageError, match="a cannot be written: No space left"):
            files.save(engine, "a")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(UsageError) as caught:
            files.save(engine, "a")
        assert str(tmp_path) not in caught.value.message

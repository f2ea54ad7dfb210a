"""What the keys of a server share: nothing, unless its owner says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localspec.core.options.load_options import LoadOptions
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.engine import Engine
from localspec.server.guard import OWNER_HEADER, Access
from localspec.server.service import Defaults
from localspec.speculative.history import AnswerHistory
from tests.support.served import COMPLETIONS, ServedToy, Site, serving

SECRET = "The number of the safe is 73519462, and it stands in the cellar behind the wine. " * 2
KEYED = Access(keys=("mine", "yours", "2"), key_names={"mine": "a", "yours": "a"})


def ask(site: Site, prompt: str, key: str = "", **headers: str) -> Any:
    """A completion's usage of the cache, by a key."""
    if key:
        headers["authorization"] = f"Bearer {key}"
    reply = site.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 4, "temperature": 0}, **headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


def cached(site: Site, prompt: str, key: str = "", **headers: str) -> int:
    usage = ask(site, prompt, key, **headers)["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@contextmanager
def toys(slots: int, access: Access = KEYED, **options: Any) -> Iterator[Site]:
    engines = [ServedToy(quirk=None) for _ in range(slots)]
    with serving(engines[0], access=access, slots=engines, **options) as site:
        yield site


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_key_finds_the_prompt_of_another_in_the_cache(slots: int) -> None:
    with toys(slots) as site:
        assert cached(site, SECRET, "mine") == 0
        for digits in range(10):  # the right digit would be cached, and counted
            assert cached(site, SECRET[:26] + str(digits), "yours") <= 26
        assert cached(site, "The number", "2") == 0
    with toys(slots) as site:
        ask(site, SECRET, "mine")
        assert cached(site, SECRET, "yours") == 0
        assert cached(site, SECRET, "yours") == len(SECRET) - 1


def test_a_slot_is_found_again_by_its_owner() -> None:
    with toys(2) as site:
        for key in ("mine", "yours"):
            assert cached(site, SECRET, key) == 0
        for key in ("yours", "mine", "mine", "yours"):
            assert cached(site, SECRET, key) == len(SECRET) - 1


@pytest.mark.parametrize(
    "options", [{"access": Access()}, {"access": Access(keys=("mine",))}, {"share_cache": True}]
)
def test_all_is_shared_without_keys_within_one_and_where_it_is_allowed(
    options: dict[str, Any],
) -> None:
    keys = ("mine", "yours") if "share_cache" in options else ("mine", "mine")
    with toys(1, **options) as site:
        found = [cached(site, SECRET, key) for key in keys]
    assert found == [0, len(SECRET) - 1]


def test_an_owner_is_a_key_and_no_name_or_header() -> None:
    with toys(1) as site:  # two keys of one name; the third's name is the number of the second
        ask(site, SECRET, "mine", **{OWNER_HEADER: "x"})
        found = site.service.session._by_id[0]._owner
        assert len(found) == 32 and "mine" not in found
        for key, header in (("yours", ""), ("2", ""), ("yours", found), ("2", "a/x")):
            assert cached(site, SECRET, key, **{OWNER_HEADER: header}) == 0
            ask(site, SECRET, "mine")


def test_a_front_says_who_the_owner_is() -> None:
    with toys(1, Access(keys=("front",), behind_front=True)) as site:
        found = [cached(site, SECRET, "front", **{OWNER_HEADER: each}) for each in "aabba"]
    assert found == [0, len(SECRET) - 1, 0, len(SECRET) - 1, 0]


def test_answers_of_one_key_are_no_drafts_for_another() -> None:
    toy = ServedToy(quirk=None)
    toy.history = common = AnswerHistory()
    held: list[AnswerHistory] = []
    with serving(toy, access=KEYED) as site:
        for key in ("mine", "yours", "mine"):
            ask(site, SECRET, key)
            held.append(toy.history)
    mine, yours, again = held
    assert mine is again and len({id(each) for each in (mine, yours, common)}) == 3
    assert len(common) == 0 < len(yours) < len(mine)


def test_a_listing_of_slots_holds_no_text() -> None:
    with toys(2) as site:
        ask(site, SECRET, "mine")
        for slot in site.get("/slots", authorization="Bearer yours").json():
            assert not any(isinstance(value, (str, list, dict)) for value in slot.values())


@pytest.mark.llama
@pytest.mark.parametrize("parallel", [1, 2])
def test_the_caches_of_a_real_pair(
    demo_files: tuple[Path, Path], tmp_path: Path, parallel: int
) -> None:
    """States in RAM, slots and their files; each owner finds its own again, with the same text."""
    target, draft = (LoadOptions(path, threads=1, parallel=parallel) for path in demo_files)
    long = SECRET * 2
    with (
        Engine.load(target, draft) as engine,
        serving(
            engine,
            access=KEYED,
            defaults=Defaults(),
            prefixes=PrefixCache(2**28),
            slot_folder=tmp_path,
        ) as site,
    ):

        def slot(action: str, key: str, name: str = "a") -> Any:
            head = {"authorization": f"Bearer {key}"}
            return site.post(f"/slots/0?action={action}", {"filename": name}, **head)

        first = ask(site, long, "mine")
        for i in range(parallel):
            assert cached(site, long + str(i), "yours") == 0 or i
        again = ask(site, long, "mine")
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        count = again["usage"]["prompt_tokens"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == count - 1
        assert slot("save", "2").status_code == 400  # it has read nothing
        assert slot("erase", "2").json()["n_erased"] == 0
        ask(site, long, "2")
        for key in ("mine", "yours"):
            ask(site, long, key)
            assert slot("restore", key).status_code == 400  # nothing saved under this name
        assert not (tmp_path / "a").exists()

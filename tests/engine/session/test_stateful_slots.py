"""Slots of recurrent and hybrid targets: rollback by sequence, in passes that others share."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from localspec.engine.engine import Engine
from localspec.engine.session.slot import Slot
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from tests.support.llama.today import STATEFUL, WAYS
from tests.support.real_pair import Slots, options, random_ids, slots_of
from tests.support.toy.slots import together

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]
PRECISE = {"ctx_size": 256, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}


@pytest.fixture(
    scope="module", params=[(name, way) for name in STATEFUL for way in WAYS[name]], ids="-".join
)
def shared_and_alone(
    request: pytest.FixtureRequest, architecture: Files
) -> Iterator[tuple[Slots, LlamaModel]]:
    name, way = request.param
    path = architecture(name)
    oracle = LlamaModel(read_header(path), options(path, **PRECISE))
    loaded = options(path, parallel=4, **PRECISE)
    target = LlamaModel(read_header(path), loaded, strategies=(way,))
    assert target.rollback.name == way
    with Engine(target, None) as engine:
        yield slots_of(engine), oracle
    oracle.close()


def answer(slot: Slot, dice: Random) -> None:
    """Prompts, rounds of all widths, returns, in an order of its own."""
    model = slot.target
    for _ in range(dice.randrange(4, 12)):
        count, before = dice.choice((0, 0, 1, 2, 3, 4, 6, 9)), len(model.tokens)
        step = dice.choice(("verify", "verify", "verify", "read", "return", "end"))
        if before > 200:
            model.truncate(dice.randrange(100))
        elif step == "verify":
            model.decode([dice.randrange(256) for _ in range(count + 1)], count + 1)
            model.truncate(before + 1 + dice.randrange(count + 1))
        elif step == "read":
            model.decode(random_ids(dice.choice((1, 5, 30, 70)), before), 0)
        elif step == "return" and before:
            model.truncate(before - dice.randrange(1, min(before, 12) + 1))
        elif step == "end":
            model.truncate(0)


@pytest.mark.parametrize("seed", range(4))
def test_after_any_history_of_all_slots_each_one_s_state_is_right(
    shared_and_alone: tuple[Slots, LlamaModel], seed: int
) -> None:
    slots, oracle = shared_and_alone

    def work(slot: Slot, number: int) -> None:
        answer(slot, Random(f"{seed} {number}"))

    together(slots, slots.batcher, work)
    for slot, more in itertools.product(slots, (1, 4)):
        tokens = [*slot.target.tokens, *range(more)]
        oracle.truncate(0)
        oracle.decode(tokens[:-more], 0)
        expected = oracle.decode(tokens[-more:], more)
        found = slot.target.decode([*range(more)], more)
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
        assert slot.target.tokens == tokens

"""Real llama.cpp on small real files: a random twin pair, a recurrent model, the bundled pair.

Shared fixtures and helpers. Everything runs on one thread unless a test is about threads.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.chat.answer import Answer, collect
from localspec.core import paths
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.session.batching import Batcher
from localspec.engine.session.slot import Slot
from localspec.llama import llama_library
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from tests.support.files.gguf_files import write_with_gguf
from tests.support.files.tiny_models import tokenizer_keys, vocabulary, write_tiny_model

GREEDY = SamplingParams(temperature=0)
LENGTHS: tuple[DraftTokens, ...] = (0, 1, 4, 9, "auto")


@dataclass(frozen=True)
class TinyFiles:
    """Paths: a target, its twin to draft for it, a target in F32, a recurrent model."""

    target: Path
    draft: Path
    floats: Path
    recurrent: Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyFiles:
    folder = tmp_path_factory.mktemp("tiny models")
    return TinyFiles(
        write_tiny_model(folder / "target.gguf", seed=1, context_length=1024),
        write_tiny_model(folder / "draft.gguf", seed=1, noise=0.03, context_length=1024),
        write_tiny_model(
            folder / "floats.gguf", seed=1, context_length=1024, matrix_type=np.float32
        ),
        write_recurrent_model(folder / "recurrent.gguf"),
    )


@pytest.fixture(scope="session")
def demo_files() -> tuple[Path, Path]:
    return paths.demo_pair()


@pytest.fixture(scope="session")
def _tiny_engine(tiny: TinyFiles) -> Iterator[Engine]:
    with Engine.load(options(tiny.target), options(tiny.draft)) as engine:
        yield engine


@pytest.fixture
def engine(_tiny_engine: Engine) -> Engine:
    """The tiny pair, loaded once for all tests, with empty caches."""
    assert _tiny_engine.draft is not None
    _tiny_engine.target.truncate(0)
    _tiny_engine.draft.truncate(0)
    return _tiny_engine


@pytest.fixture
def floats(tiny: TinyFiles) -> Iterator[LlamaModel]:
    """The target in F32, without flash attention, which rounds far more from 64 tokens on."""
    model = load_model(tiny.floats, cache_type_k="f32", cache_type_v="f32", flash_attention="off")
    yield model
    model.close()


def options(path: Path, **changes: object) -> LoadOptions:
    return LoadOptions(path, **({"threads": 1} | changes))  # type: ignore[arg-type]


def load_model(path: Path, **changes: object) -> LlamaModel:
    return LlamaModel(read_header(path), options(path, **changes))


def generate(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    length: DraftTokens = 0,
    max_tokens: int | None = 24,
) -> Answer:
    """One answer, from whatever the caches hold."""
    _wait_for_slot(engine)
    return collect(
        stream_generate(engine, prompt, GenerateOptions(params, length, max_tokens=max_tokens))
    )


def fresh(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    length: DraftTokens = 0,
    max_tokens: int | None = 24,
) -> Answer:
    """One answer from empty caches."""
    _wait_for_slot(engine)
    engine.target.truncate(0)
    if engine.draft is not None:
        engine.draft.truncate(0)
    return generate(engine, prompt, params, length, max_tokens)


def _wait_for_slot(engine: Engine) -> None:
    """An answer whose stream was dropped ends a little later, in the compute thread."""
    session = getattr(engine, "_session", None)  # tests also decode with a slot, which has none
    if session is not None and not session.is_closed:
        session.run(0, lambda slot: None).result()


def unfinished_passes(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The contexts whose last pass nothing has waited for: a GPU would still be computing it."""
    llama, contexts = llama_library.library(), set[int]()
    for name, note in (
        ("llama_decode", contexts.add),
        ("llama_process", contexts.add),
        ("llama_synchronize", contexts.discard),
        ("llama_get_logits", contexts.discard),
    ):
        monkeypatch.setattr(llama, name, _noting(getattr(llama, name), note))
    return contexts


def _noting(function: Callable[..., object], note: Callable[[int], None]) -> Callable[..., object]:
    def noting(context: int, *arguments: object) -> object:
        note(context)
        return function(context, *arguments)

    return noting


class Interrupting:
    """A function of llama.cpp that Ctrl-C cuts off at one call, before or after its work."""

    def __init__(self, function: Callable[..., Any], call: int, after: bool) -> None:
        self._function = function
        self._remaining = call
        self._after = after

    @property
    def fired(self) -> bool:
        return self._remaining <= 0

    def __call__(self, *arguments: object) -> Any:
        self._remaining -= 1
        result = self._function(*arguments) if self._remaining or self._after else None
        if self._remaining == 0:
            raise KeyboardInterrupt
        return result


def interrupt(
    patch: pytest.MonkeyPatch, call: int, name: str = "llama_decode", *, after: bool = False
) -> Interrupting:
    """Press Ctrl-C in the nth call of a function of llama.cpp from now on."""
    library = llama_library.library()
    cut = Interrupting(getattr(library, name), call, after)
    patch.setattr(library, name, cut)
    return cut


def press_ctrl_c() -> None:
    """Press Ctrl-C in the middle of a slow pass, which the compute thread, that calls this, makes.

    Python may miss a signal at the moment in which a thread begins to wait: it is sent again.
    """
    for _ in range(5):
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(0.1)


def random_ids(count: int, seed: int = 0) -> list[int]:
    """Ordinary tokens of the tiny vocabulary."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, 256, count)]


def retuned(draft: Path) -> Path:
    """A copy of a model whose control tokens have other names, as after another fine-tune."""
    copy = draft.with_name("retuned.gguf")
    copy.write_bytes(draft.read_bytes().replace(b"<|im_start|>", b"<|im_strat|>"))
    return copy


def write_recurrent_model(path: Path, layers: int = 2) -> Path:
    """A random Mamba model with the tiny vocabulary: its state cannot forget single tokens."""
    width, inner, state, step, convolution = 64, 128, 16, 8, 4
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        values: np.ndarray = (rng.standard_normal(shape) * 2 / np.sqrt(shape[1])).astype(np.float32)
        return values

    sizes: dict[str, object] = {
        "vocab_size": len(vocabulary()),
        "context_length": 1024,
        "embedding_length": width,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": layers,
        "ssm.conv_kernel": convolution,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": step,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    keys = {
        "general.architecture": "mamba",
        "general.name": "Recurrent",
        "general.file_type": 0,
        **{f"mamba.{key}": value for key, value in sizes.items()},
        **tokenizer_keys(vocabulary()),
    }
    tensors = {
        "token_embd.weight": matrix(len(vocabulary()), width),
        "output_norm.weight": np.ones(width, np.float32),
    }
    for layer in range(layers):
        tensors |= {
            f"blk.{layer}.{name}": values
            for name, values in {
                "attn_norm.weight": np.ones(width, np.float32),
                "ssm_in.weight": matrix(2 * inner, width),
                "ssm_conv1d.weight": matrix(inner, convolution),
                "ssm_conv1d.bias": np.zeros(inner, np.float32),
                "ssm_x.weight": matrix(step + 2 * state, inner),
                "ssm_dt.weight": matrix(inner, step),
                "ssm_dt.bias": np.zeros(inner, np.float32),
                "ssm_a": -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1)),
                "ssm_d": np.ones(inner, np.float32),
                "ssm_out.weight": matrix(width, inner),
            }.items()
        }
    return write_with_gguf(path, keys, tensors)


class Slots(list[Slot]):
    """The slots of an engine, and what makes their passes."""

    batcher: Batcher


def slots_of(engine: Engine) -> Slots:
    """The slots of a new session."""
    session = engine.open_session()
    slots = Slots(
        session.run(i, lambda slot: slot).result()  # type: ignore[misc]
        for i in range(len(session.slots()))
    )
    if session._batcher is not None:
        slots.batcher = session._batcher
    return slots

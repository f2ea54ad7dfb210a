"""Compares placements of models on a device with the CPU: text, and memory predicted and taken.

    python benchmarks/devices.py [--only NAME] [--tokens 48]

Each placement of the bundled pair, or of the bundled hybrid, answers two questions greedily:
plainly, with a fixed length and with auto. Told is whether its plain text is that of the CPU, or
where it leaves it and whether rounding explains that: whether the logits of both, behind the same
text, are farther apart than the CPU's pick leads. Drafted texts are held to the placement's own
plain one, as `localspec bench` does. Memory is what was estimated from the header and what
llama.cpp says it took, on the device and in all. A placement is a process, so that one that crashes
is a row too.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from common import GREEDY, Parser, conditions

from localspec.bench.comparison import Comparison
from localspec.bench.plan import BenchPlan
from localspec.bench.run import run_bench
from localspec.core import paths
from localspec.core.options.load_options import ALL_LAYERS, LoadOptions
from localspec.engine.engine import Engine
from localspec.llama import llama_library
from localspec.llama.memory.estimate import estimate_run
from localspec.llama.model import LlamaModel

QUESTIONS = ("How is random.choice implemented?", "What arguments does subprocess.run() take?")
CTX_SIZE = 1024
Options = dict[str, object]
ON_CPU: Options = {"device": "none", "gpu_layers": 0}
ON_DEVICE: Options = {"gpu_layers": ALL_LAYERS}


class Placement(NamedTuple):
    """Where a model and its draft lie; of the hybrid, with a head or a model that drafts."""

    target: Options
    draft: Options | None
    model: str = "pair"


PLACEMENTS = {
    "the CPU": Placement(ON_CPU, ON_CPU),
    "everything": Placement(ON_DEVICE, ON_DEVICE),
    "no draft": Placement(ON_DEVICE, None),
    "the target": Placement(ON_DEVICE, ON_CPU),
    "the draft": Placement(ON_CPU, ON_DEVICE),
    "half the layers": Placement({"gpu_layers": 4}, {"gpu_layers": 2}),
    "as many as fit": Placement({}, {}),
    "chains": Placement(ON_DEVICE | {"branches": 1}, ON_DEVICE),
    "trees at each length": Placement(ON_DEVICE | {"branches": 3}, ON_DEVICE),
    "feed-forward in RAM": Placement(ON_DEVICE | {"override_tensors": ("ffn_.*=CPU",)}, ON_DEVICE),
    "one GPU of all": Placement(ON_DEVICE | {"split_mode": "none"}, ON_DEVICE),
    "shares by hand": Placement(ON_DEVICE | {"tensor_split": (1.0,)}, ON_DEVICE),
    "no flash attention": Placement(ON_DEVICE | {"flash_attention": "off"}, ON_DEVICE),
    "cache in Q8_0": Placement(
        ON_DEVICE | {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, ON_DEVICE
    ),
    "exact": Placement(ON_DEVICE | {"exact": True}, ON_DEVICE),
    "hybrid on the CPU": Placement(ON_CPU, ON_CPU, "hybrid"),
    "hybrid": Placement(ON_DEVICE, ON_DEVICE, "hybrid"),
    "hybrid, half the layers": Placement({"gpu_layers": 3}, ON_DEVICE, "hybrid"),
    "hybrid, MTP head": Placement(ON_DEVICE, ON_DEVICE, "heads"),
    "hybrid, half the layers, MTP head": Placement({"gpu_layers": 3}, None, "heads"),
}


def options(placement: Placement) -> tuple[LoadOptions, LoadOptions | None]:
    """How both models of a placement are loaded."""
    target, draft = paths.demo_pair()
    path = target if placement.model == "pair" else paths.bundled_folder() / "hybrid.gguf"
    asked: Options = {"ctx_size": CTX_SIZE}
    first = LoadOptions(path, **(asked | placement.target))  # type: ignore[arg-type]
    if placement.model == "heads":
        return first, replace(first, load_heads=True)
    if placement.draft is None:
        return first, None
    return first, LoadOptions(draft, **({"ctx_size": CTX_SIZE} | placement.draft))  # type: ignore[arg-type]


def on_cpu(placement: Placement) -> LoadOptions:
    """The target of a placement on the CPU, with its other options."""
    return replace(options(placement)[0], device="none", gpu_layers=0, override_tensors=())


def memory(model: LlamaModel) -> str:
    """Predicted over taken, in MB, on the device and in all."""
    estimate = estimate_run(model.header, model.n_ctx, model.options)
    layers = model.options.gpu_layers or 0
    predicted, taken = estimate.on_gpu(layers), model.memory
    return (
        f"{predicted / 1e6:.1f} / {taken.on_devices / 1e6:.1f}, "
        f"{estimate.use.total / 1e6:.1f} / {taken.total / 1e6:.1f}"
    )


def logits(model: LlamaModel, prompt: Sequence[int], text: Sequence[int]) -> np.ndarray:
    """What a model says behind a prompt and each beginning of a text, a token at a time."""
    model.truncate(0)
    model.decode(prompt[:-1], 0)
    return np.array([model.decode([token], 1)[0].copy() for token in [prompt[-1], *text]])


def beside_cpu(
    engine: Engine, cpu: Engine, prompts: Sequence[Sequence[int]], comparison: Comparison
) -> str:
    """Whether the plain texts are those of the CPU, or how far rounding takes them apart."""
    told, widest = [], 0.0
    for prompt, answer in zip(prompts, comparison.sides[0].answers[0], strict=True):
        text = answer.tokens
        ours, theirs = (logits(each.target, prompt, text[:-1]) for each in (engine, cpu))
        apart = np.abs(ours - theirs).max(axis=1)
        picks = theirs.argmax(axis=1)
        place = next((i for i, token in enumerate(text) if token != picks[i]), None)
        widest = max(widest, float(apart[:place].max() if place else apart[0]))
        if place is not None:
            lead = float(theirs[place].max() - theirs[place][text[place]])
            kind = "rounding" if lead <= 2 * apart[place] else "NOT ROUNDING"
            told.append(f"{kind} at {place} (lead {lead:.4f}, logits {apart[place]:.4f} apart)")
    same = f"same, logits at most {widest:.4f} apart"
    return "; ".join(told) or same


def drafted(comparison: Comparison) -> str:
    """What was accepted, and whether drafted texts are the plain one."""
    told = []
    for figures in comparison.figures(comparison.names)[1:]:
        told.append(
            f"{figures.draft_tokens}: {figures.accepted} of {figures.drafted} {figures.text}"
        )
    return ", ".join(told)


def measure(name: str, tokens: int) -> None:
    """Print one row, for a child of this script."""
    placement = PLACEMENTS[name]
    target, draft = options(placement)
    plan = BenchPlan(GREEDY, (0, 4, "auto") if draft else (0,), 1, tokens)
    with Engine.load(target, draft) as engine, Engine.load(on_cpu(placement)) as cpu:
        prompts = [engine.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]
        (comparison,) = run_bench(engine, {name: prompts}, plan)
        both = [each for each in (engine.target, engine.draft) if isinstance(each, LlamaModel)]
        cells = [
            name,
            "; ".join(memory(each) for each in both),
            beside_cpu(engine, cpu, prompts, comparison),
            drafted(comparison),
            " ".join(note for note in engine.notes if "crashed" in note),
        ]
    print("|" + "|".join(cells) + "|", flush=True)


def main() -> None:
    """Print a row for each placement."""
    parser = Parser(__doc__)
    parser.integers(tokens=48)
    parser.add_argument("--only", choices=PLACEMENTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measure(args.only, args.tokens)
        return
    print(conditions(None, *(each.description for each in llama_library.devices() if each.is_gpu)))
    print("|on the device|MB predicted / taken: there, in all|beside the CPU|drafted|notes|")
    print("|---|---|---|---|---|", flush=True)
    for name in [args.only] if args.only else PLACEMENTS:
        command = [
            sys.executable,
            __file__,
            "--child",
            "--only",
            name,
            "--tokens",
            str(args.tokens),
        ]
        if code := subprocess.run(command).returncode:
            print(f"|{name}|ended with {code}||||", flush=True)


if __name__ == "__main__":
    main()

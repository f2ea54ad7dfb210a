"""The report of the evaluation: evaluation.json, and the README of the models made from it."""

import json
from pathlib import Path
from typing import Any

from scripts.train_demo_models.model import CONTEXT_LENGTH
from scripts.train_demo_models.text.tokenizer import VOCABULARY_SIZE

Json = dict[str, Any]

TEMPLATE = Path(__file__).with_name("models_readme.md")
HYBRID_TEMPLATE = Path(__file__).parent / "hybrid" / "readme.md"


def write_report(out_dir: Path, report: Json) -> None:
    """Write evaluation.json and README.md."""
    (out_dir / "evaluation.json").write_text(json.dumps(report, indent=2) + "\n")
    (out_dir / "README.md").write_text(render_readme(report))


def render_readme(report: Json) -> str:
    """The README of the models from the report of their evaluation."""
    corpus, curves = report["corpus"], report["curves"]
    return TEMPLATE.read_text(encoding="utf-8").format(
        vocabulary=VOCABULARY_SIZE,
        hours=sum(curve[-1]["minutes"] for curve in curves.values()) / 60,
        context=CONTEXT_LENGTH,
        python=corpus["python"],
        shapes=_shape_table(report["shapes"]),
        train_files=corpus["train_raw"]["documents"],
        train_chats=corpus["train_chat"]["documents"],
        train_tokens=corpus["train_raw"]["tokens"] + corpus["train_chat"]["tokens"],
        held_out=", ".join(f"`{name}`" for name in corpus["held_out"]),
        seen_loss=curves["target"][-1]["train_loss"],
        held_loss=curves["target"][-1]["held_out_loss"],
        target_curve=_curve_table(curves["target"]),
        draft_curve=_curve_table(curves["draft"]),
        acceptance=_acceptance_table(report["held_out_text"], report["own_answers"]),
        sampling=_sampling_table(report["held_out_text"]),
        repetition=_repetition_table(report["own_answers"]),
        command=report["command"],
        torch=report["made_with"]["torch"],
        threads=report["made_with"]["threads"],
        sums="\n    ".join(report["sha256"]),
        hybrid=_hybrid_section(report["hybrid"]) if "hybrid" in report else "",
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _shape_table(shapes: Json) -> str:
    """The architecture of both models."""
    head = ["", "weights", "width", "heads", "feed-forward", "layers"]
    keys = ("weights", "width", "heads", "hidden", "layers")
    rows = [[name, *(f"{shape[key]:,}" for key in keys)] for name, shape in shapes.items()]
    return _table(head, rows)


def _curve_table(curve: list[Json]) -> str:
    """A loss curve, at most about ten of its points."""
    stride = max(1, len(curve) // 10)
    points = curve[stride - 1 :: stride]
    if not points or points[-1] != curve[-1]:
        points.append(curve[-1])
    rows = [
        [
            f"{point['minutes']:.1f}",
            f"{point['tokens']:,}",
            f"{point['train_loss']:.3f}",
            f"{point['held_out_loss']:.3f}",
        ]
        for point in points
    ]
    return _table(["minutes", "tokens", "training loss", "held-out loss"], rows)


def _acceptance_table(text: Json, own: Json) -> str:
    """Runs of agreement, at temperature 0 unless said otherwise."""
    greedy, sampled = "greedy_runs_1_to_8", "shared_noise_runs_1_to_8_at_0.8"
    runs = {
        "held-out source": text["raw"][greedy],
        "held-out chat": text["chat"][greedy],
        "held-out source, temperature 0.8": text["raw"][sampled],
        "held-out chat, temperature 0.8": text["chat"][sampled],
        "the target's answers, seen packages": own["train"][greedy],
        "the target's answers, held-out packages": own["held"][greedy],
    }
    head = ["prefix", *(str(n) for n in range(1, 9))]
    return _table(head, [[name, *(f"{x:.0%}" for x in shares)] for name, shares in runs.items()])


def _hybrid_section(hybrid: Json) -> str:
    """What the README says of the hybrid."""
    shape, own, text = hybrid["shape"], hybrid["own_answers"], hybrid["held_out_text"]
    return HYBRID_TEMPLATE.read_text(encoding="utf-8").format(
        weights=shape["weights"],
        width=shape["width"],
        heads=shape["heads"],
        hidden=shape["hidden"],
        layers=shape["layers"],
        period=shape["period"],
        minutes=hybrid["curve"][-1]["minutes"],
        tokens=hybrid["curve"][-1]["tokens"],
        curve=_curve_table(hybrid["curve"]),
        drafts=_drafts_table(text, own),
        source_loss=text["raw"]["held_out_loss"]["target"],
        chat_loss=text["chat"]["held_out_loss"]["target"],
        repetition=_repetition_table(own),
    )


def _drafts_table(text: Json, own: Json) -> str:
    """Agreement with what the hybrid says: of the MTP head, the pair's draft, early exits."""
    sides = {
        "held-out source": text["raw"],
        "held-out chat": text["chat"],
        "its answers, seen packages": own["train"],
        "its answers, held-out packages": own["held"],
    }
    rows = []
    for name, side in sides.items():
        runs = [*side["head_runs_1_to_3"], *side["greedy_runs_1_to_8"][:3]]
        shares = [*runs, *side["early_exits"].values()]
        rows.append([name, *(f"{share:.0%}" for share in shares)])
    layers = [f"after layer {layer}" for layer in own["held"]["early_exits"]]
    head = ["prefix", *(f"head {n}" for n in (1, 2, 3)), *(f"draft {n}" for n in (1, 2, 3))]
    return _table([*head, *layers], rows)


def _sampling_table(text: Json) -> str:
    """Losses, and the overlap at temperature 0.8, on held-out text."""
    rows = [
        [
            name,
            f"{text[kind]['held_out_loss']['target']:.3f}",
            f"{text[kind]['held_out_loss']['draft']:.3f}",
            f"{text[kind]['overlap_at_0.8']:.1%}",
        ]
        for name, kind in (("source", "raw"), ("chat", "chat"))
    ]
    return _table(["held-out text", "target loss", "draft loss", "overlap at 0.8"], rows)


def _repetition_table(own: Json) -> str:
    """How much the target repeats itself."""
    rows = [
        [
            name,
            str(own[side]["answers"]),
            f"{own[side]['mean_tokens']:.0f}",
            str(own[side]["ended_by_themselves"]),
            f"{own[side]['repeated_8_grams']:.1%}",
            str(own[side]["answers_over_30_percent_repeated"]),
        ]
        for name, side in (("seen", "train"), ("held-out", "held"))
    ]
    head = ["packages", "answers", "mean tokens", "ended", "repeated 8-grams", "over 30 %"]
    return _table(head, rows)

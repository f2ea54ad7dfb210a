"""Evaluation of the hybrid: as a target for the pair's draft, for its MTP head, at early exits."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scripts.train_demo_models.evaluation import (
    TEXT_ROWS,
    Pair,
    answers,
    measure_answers,
    measure_text,
    prompt_ids,
)
from scripts.train_demo_models.hybrid.model import Hybrid
from scripts.train_demo_models.hybrid.objective import exits
from scripts.train_demo_models.hybrid.teacher import load_teacher, load_tokenizer
from scripts.train_demo_models.hybrid.training import FOLDER, load_hybrid
from scripts.train_demo_models.report import Json, write_report
from scripts.train_demo_models.text.corpus import BatchSampler
from scripts.train_demo_models.training import SHORT_LENGTH

DRAFTED = 3  # tokens of a draft by the MTP head


def evaluate_hybrid(work_dir: Path, out_dir: Path, seed: int, threads: int) -> None:
    """Measure the hybrid and add it to evaluation.json and the README.md of the models."""
    torch.manual_seed(seed)
    folder, model = work_dir / FOLDER, load_hybrid(work_dir)
    facts = json.loads((folder / "corpus.json").read_text())
    report: Json = json.loads((out_dir / "evaluation.json").read_text())
    report["hybrid"] = {
        "made_with": {"torch": torch.__version__.split("+")[0], "threads": threads},
        "shape": asdict(model.shape) | {"weights": model.parameter_count()},
        "curve": json.loads((folder / "hybrid_curve.json").read_text()),
        **_measure(model, folder, out_dir, facts["questions"]),
    }
    report["sha256"] = (out_dir / "SHA256SUMS").read_text().splitlines()
    write_report(out_dir, report)
    print(json.dumps(report["hybrid"], indent=2))


def _measure(model: Hybrid, folder: Path, out_dir: Path, questions: dict[str, list[str]]) -> Json:
    """Figures on held-out text and on the hybrid's own answers, with the pair's draft."""
    pair: Pair = {"target": model, "draft": load_teacher(out_dir / "draft.gguf", "draft")}
    held_out, tokenizer = BatchSampler(folder, "held"), load_tokenizer(out_dir / "target.gguf")
    text: Json = {}
    own: Json = {}
    with torch.no_grad():
        for kind in ("raw", "chat"):
            ids = held_out.batch(np.random.default_rng(1), TEXT_ROWS, SHORT_LENGTH, kind)
            rows = [(row[None, :-1], 0) for row in ids]
            text[kind] = measure_text(pair, held_out, kind) | measure_drafts(model, rows)
        for split in ("train", "held"):
            given = list(answers(pair, tokenizer, questions[split]))
            prompts = [prompt_ids(tokenizer, answer.question) for answer in given]
            rows = [
                (torch.tensor([prompt + answer.tokens[:-1]]), len(prompt) - 1)
                for prompt, answer in zip(prompts, given, strict=True)
            ]
            own[split] = measure_answers(given) | measure_drafts(model, rows)
    return {"held_out_text": text, "own_answers": own}


def measure_drafts(model: Hybrid, rows: list[tuple[Tensor, int]]) -> Json:
    """How often the MTP head's drafts and the early exits say what the model says.

    A row is a text, which all see as their prefix, and the position from which on it counts.
    """
    runs: list[Tensor] = []
    early: dict[int, list[Tensor]] = {layer: [] for layer in exits(model.shape)}
    for ids, begin in rows:
        states, _ = model.states(ids, model.empty_cache())
        said = _said(model, states[-1])
        drafts = model.drafts(ids, states[-1], DRAFTED)
        hits = torch.stack([_said(model, draft) == said for draft in drafts])[:, begin:]
        places = hits.shape[1] - DRAFTED + 1
        chains = [hits[i, i : i + places] for i in range(DRAFTED)]
        runs.append(torch.stack(chains).float().cumprod(dim=0))
        for layer, found in early.items():
            found.append((_said(model, states[layer - 1]) == said)[begin:])
    shares = torch.cat(runs, dim=1).mean(dim=1).tolist()
    return {
        f"head_runs_1_to_{DRAFTED}": [round(share, 4) for share in shares],
        "early_exits": {
            str(layer): round(float(torch.cat(found).float().mean()), 4)
            for layer, found in early.items()
        },
    }


def _said(model: Hybrid, states: Tensor) -> Tensor:
    """The likeliest next token at each position of one row."""
    return model.logits(states)[0].argmax(-1)

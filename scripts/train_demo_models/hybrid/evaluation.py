"""Evaluation of the hybrid: as a target for the pair's draft, for its MTP head, at early exits."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from scripts.train_demo_models.evaluation import (
    Answer,
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
    own: Json = {}
    with torch.no_grad():
        text = {kind: measure_text(pair, held_out, kind) for kind in ("raw", "chat")}
        for split in ("train", "held"):
            given = list(answers(pair, tokenizer, questions[split]))
            own[split] = measure_answers(given) | _measure_drafts(model, tokenizer, given)
    return {"held_out_text": text, "own_answers": own}


def _measure_drafts(model: Hybrid, tokenizer: Tokenizer, given: list[Answer]) -> Json:
    """How far the MTP head's drafts agree with the answers, and how often early exits do."""
    runs: list[Tensor] = []
    early: dict[int, list[Tensor]] = {layer: [] for layer in exits(model.shape)}
    for answer in given:
        begin = len(prompt := prompt_ids(tokenizer, answer.question))
        ids = torch.tensor([prompt + answer.tokens])
        states, _ = model.states(ids, model.empty_cache())
        drafts = model.drafts(ids, states[-1], DRAFTED)
        hits = torch.stack([_hits(model, draft, ids)[begin - 1 :] for draft in drafts])
        places = hits.shape[1] - DRAFTED + 1
        chain = [hits[i, i : i + places] for i in range(DRAFTED)]
        runs.append(torch.stack(chain).float().cumprod(dim=0))
        for layer, found in early.items():
            found.append(_hits(model, states[layer - 1], ids)[begin - 1 :])
    shares = torch.cat(runs, dim=1).mean(dim=1).tolist()
    return {
        f"head_runs_1_to_{DRAFTED}": [round(share, 4) for share in shares],
        "early_exits": {
            str(layer): round(float(np.mean(torch.cat(found).tolist())), 4)
            for layer, found in early.items()
        },
    }


def _hits(model: Hybrid, states: Tensor, ids: Tensor) -> Tensor:
    """Where the likeliest token is the next one, at each position but the last."""
    return model.logits(states)[0, :-1].argmax(-1) == ids[0, 1:]

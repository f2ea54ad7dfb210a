"""Training of the hybrid: its corpus in the pair's tokens, its teacher, and the run itself."""

from dataclasses import replace
from pathlib import Path

import torch

from scripts.train_demo_models.hybrid.model import Hybrid
from scripts.train_demo_models.hybrid.objective import hybrid_objective
from scripts.train_demo_models.hybrid.teacher import (
    begin_from_teacher,
    load_teacher,
    load_tokenizer,
)
from scripts.train_demo_models.text.corpus import build_corpus
from scripts.train_demo_models.training import Trainer, TrainingPlan

FOLDER = "hybrid"  # inside the working folder: its corpus is in the tokens of the published pair


def train_hybrid(plan: TrainingPlan, pair_dir: Path) -> None:
    """Train the hybrid with the published target as its teacher, in that one's tokens."""
    work_dir = plan.work_dir / FOLDER
    work_dir.mkdir(parents=True, exist_ok=True)
    build_corpus(work_dir, plan.seed, load_tokenizer(pair_dir / "target.gguf"))
    torch.manual_seed(plan.seed + 2)
    teacher, model = load_teacher(pair_dir / "target.gguf"), Hybrid()
    begin_from_teacher(model, teacher)
    objective = hybrid_objective(model, teacher)
    Trainer("hybrid", model, objective, replace(plan, work_dir=work_dir)).run()


def load_hybrid(work_dir: Path) -> Hybrid:
    """The hybrid with the weights of its checkpoint."""
    model = Hybrid()
    state = torch.load(work_dir / FOLDER / "hybrid.pt", weights_only=True)
    model.load_state_dict(state["model"])
    model.eval()
    return model

"""Training of a model with checkpoints: of the target on text, of the draft by distillation."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_demo_models.model import (
    CONTEXT_LENGTH,
    SHAPES,
    LanguageModel,
    Llama,
    load_model,
)
from scripts.train_demo_models.optimizer import build_optimizers, set_learning_rates
from scripts.train_demo_models.text.corpus import BatchSampler

Objective = Callable[[Tensor], Tensor]  # the loss of one batch of token ids

SHORT_LENGTH = 512
LONG_SHARE = 0.1  # of the budget, at its end, for rows of the whole context
CHECKPOINT_SECONDS = 120.0
MAX_STEP_SECONDS = 5.0  # beyond it the process was suspended, which does not count as training
STEPS_BETWEEN_LINES = 25


@dataclass(frozen=True)
class TrainingPlan:
    """Where a training keeps its files, how long it runs and how it draws batches."""

    work_dir: Path
    minutes: float
    batch_tokens: int
    seed: int


@dataclass
class Progress:
    """How far a training has come."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)


class StopRequest:
    """Remembers Ctrl-C or SIGTERM, so that training stops after a step and loses none."""

    def __init__(self) -> None:
        self.received = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, *_: object) -> None:
        self.received = True


def train_target(plan: TrainingPlan) -> None:
    """Train the target on text."""
    torch.manual_seed(plan.seed)
    model = Llama(SHAPES["target"])
    Trainer("target", model, lambda ids: cross_entropy(model(ids[:, :-1]), ids), plan).run()


def train_draft(plan: TrainingPlan) -> None:
    """Train the draft to predict what the target predicts."""
    torch.manual_seed(plan.seed + 1)
    model = Llama(SHAPES["draft"])
    objective = distillation(model, load_model(plan.work_dir, "target"))
    Trainer("draft", model, objective, plan).run()


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean loss in nats per token."""
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def distillation(model: Llama, teacher: Llama) -> Objective:
    """Nine tenths KL divergence from the teacher's distribution, one tenth cross-entropy."""

    def loss(ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])
        with torch.no_grad():
            wanted = F.log_softmax(teacher(ids[:, :-1]).float(), dim=-1)
        found = F.log_softmax(logits.float(), dim=-1)
        divergence = F.kl_div(
            found.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True
        )
        plain = F.nll_loss(found.flatten(0, 1), ids[:, 1:].flatten())
        return 0.9 * divergence + 0.1 * plain

    return loss


class Trainer:
    """Trains one model until its budget of time is spent, from its checkpoint if there is one."""

    def __init__(
        self, name: str, model: LanguageModel, objective: Objective, plan: TrainingPlan
    ) -> None:
        self.name, self.model, self.objective, self.plan = name, model, objective, plan
        self.stop = StopRequest()
        self.budget = 60 * plan.minutes
        self.checkpoint = plan.work_dir / f"{name}.pt"
        self.optimizers = build_optimizers(model)
        self.progress = load_checkpoint(self.checkpoint, model, self.optimizers)
        self.train = BatchSampler(plan.work_dir, "train")
        self.held_out = BatchSampler(plan.work_dir, "held")
        self.rng = np.random.default_rng((plan.seed, self.progress.steps))
        self.losses: list[float] = []  # since the last checkpoint

    def run(self) -> None:
        """Train, save, and write the loss curve; exits with a message when asked to stop."""
        size, begin = self.model.parameter_count(), self.progress.seconds
        print(f"{self.name}: {size:,} weights, from {begin / 60:.1f} min", flush=True)
        self._train_to_end()
        if self.losses:
            self._save()
        if self.stop.received:
            raise SystemExit(f"{self.name}: stopped and saved; the same command goes on from here.")
        curve = json.dumps(self.progress.curve, indent=2)
        (self.plan.work_dir / f"{self.name}_curve.json").write_text(curve + "\n")

    def _train_to_end(self) -> None:
        """Make steps and checkpoints until the budget is spent or a stop is requested."""
        interval = min(CHECKPOINT_SECONDS, self.budget / 4)
        saved = self.progress.seconds
        while self.progress.seconds < self.budget and not self.stop.received:
            self._step()
            if self.progress.steps % STEPS_BETWEEN_LINES == 0:
                self._print_pace()
            if self.progress.seconds - saved > interval:
                self._save()
                self.losses, saved = [], self.progress.seconds

    def _step(self) -> None:
        """Make one update; the schedule follows the clock."""
        started = time.monotonic()
        fraction = self.progress.seconds / self.budget
        length = CONTEXT_LENGTH if fraction > 1 - LONG_SHARE else SHORT_LENGTH
        ids = self.train.batch(self.rng, self.plan.batch_tokens // length, length)
        set_learning_rates(self.optimizers, fraction)
        self.losses.append(self._update(ids))
        self.progress.steps += 1
        self.progress.tokens += ids.shape[0] * length
        self.progress.seconds += min(time.monotonic() - started, MAX_STEP_SECONDS)

    def _update(self, ids: Tensor) -> float:
        """Update the weights from one batch; returns the loss before it."""
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.objective(ids)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    def _print_pace(self) -> None:
        recent = self.losses[-STEPS_BETWEEN_LINES:]
        minutes, steps = self.progress.seconds / 60, self.progress.steps
        loss, pace = sum(recent) / len(recent), self.progress.tokens / self.progress.seconds
        print(
            f"  {minutes:6.2f} min  {steps:5d} steps  loss {loss:.3f}  {pace:,.0f} tokens/s",
            flush=True,
        )

    def _save(self) -> None:
        """Add a point to the loss curve, print it and write a checkpoint."""
        point: dict[str, float] = {
            "minutes": round(self.progress.seconds / 60, 2),
            "steps": self.progress.steps,
            "tokens": self.progress.tokens,
            "train_loss": round(sum(self.losses) / max(1, len(self.losses)), 4),
            "held_out_loss": round(held_out_loss(self.model, self.held_out), 4),
        }
        self.progress.curve.append(point)
        print(f"{self.name}: {point}", flush=True)
        save_checkpoint(self.checkpoint, self.model, self.optimizers, self.progress)


def held_out_loss(model: LanguageModel, held_out: BatchSampler, rows: int = 16) -> float:
    """Loss on fixed rows of the held-out text, half of them source and half chat."""
    rng = np.random.default_rng(0)
    losses = []
    for kind in ("raw", "chat"):
        ids = held_out.batch(rng, rows // 2, SHORT_LENGTH, kind)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            losses.append(float(cross_entropy(model(ids[:, :-1]), ids).item()))
    return sum(losses) / len(losses)


def save_checkpoint(
    path: Path, model: LanguageModel, optimizers: list[torch.optim.Optimizer], progress: Progress
) -> None:
    """Write everything that a later run needs to go on, in one move."""
    state = {
        "model": model.state_dict(),
        "optimisers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": asdict(progress),
    }
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def load_checkpoint(
    path: Path, model: LanguageModel, optimizers: list[torch.optim.Optimizer]
) -> Progress:
    """Restore an earlier run, or begin a new one."""
    if not path.exists():
        return Progress()
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, kept in zip(optimizers, state["optimisers"], strict=True):
        optimizer.load_state_dict(kept)
    return Progress(**state["progress"])

"""The optimizers, Muon for the matrices and AdamW for the rest, and their learning rates."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from scripts.train_demo_models.model import LanguageModel

MATRIX_RATE = 4e-3
OTHER_RATE = 3e-3
WARM_UP = 0.02  # share of the budget
DECAY = 0.6  # share of the budget
SMALL = 32  # rows or columns; a narrower matrix has no directions to balance


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum, matrices of one shape updated together for speed."""

    def __init__(self, matrices: list[nn.Parameter], rate: float, decay: float) -> None:
        super().__init__(matrices, {"lr": rate, "decay": decay, "momentum": 0.95})

    def step(self, closure: Any = None) -> Any:
        """Make one update, as large for each weight as AdamW's would be; takes no closure."""
        with torch.no_grad():
            for group in self.param_groups:
                self._update(group)

    def _update(self, group: dict[str, Any]) -> None:
        alike: dict[tuple[int, int], list[Tensor]] = {}
        for weight in group["params"]:
            alike.setdefault((min(weight.shape), max(weight.shape)), []).append(weight)
        for (_, longer), weights in alike.items():
            ahead = torch.stack([self._direction(w, group["momentum"]) for w in weights])
            scale = 0.2 * math.sqrt(longer) * group["lr"]
            for weight, turn in zip(weights, _orthogonalize(ahead), strict=True):
                weight.mul_(1 - group["lr"] * group["decay"])
                weight.sub_(turn if turn.shape == weight.shape else turn.mT, alpha=scale)

    def _direction(self, weight: Tensor, momentum: float) -> Tensor:
        """Update the running mean of the gradient; return the step's direction, wide side last."""
        grad = weight.grad
        assert grad is not None
        mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
        mean.lerp_(grad, 1 - momentum)
        ahead = grad.lerp(mean, momentum)
        return ahead.mT if ahead.shape[0] > ahead.shape[1] else ahead


def _orthogonalize(matrices: Tensor) -> Tensor:
    """Bring a stack of matrices near to orthogonal ones with five Newton-Schulz steps."""
    x = matrices.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return x.to(matrices.dtype)


def build_optimizers(model: LanguageModel) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the embedding and what is small."""
    table = model.token_embd.weight
    others = [p for p in model.parameters() if p is not table]
    matrices = [p for p in others if min(p.shape) >= SMALL and p.ndim == 2]
    small = [p for p in others if p.ndim == 1 or min(p.shape) < SMALL]
    groups = [
        {"params": [table], "weight_decay": 0.1},
        {"params": small, "weight_decay": 0.0},
    ]
    return [
        Muon(matrices, MATRIX_RATE, 0.1),
        torch.optim.AdamW(groups, lr=OTHER_RATE, betas=(0.9, 0.95), fused=True),
    ]


def set_learning_rates(optimizers: list[torch.optim.Optimizer], fraction: float) -> None:
    """Set the learning rates for this fraction of the budget."""
    for optimizer, rate in zip(optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * _schedule(fraction)


def _schedule(fraction: float) -> float:
    """Warm up, hold, then fall linearly to almost nothing at the end of the budget."""
    if fraction < WARM_UP:
        return max(0.02, fraction / WARM_UP)
    return max(0.01, min(1.0, (1.0 - fraction) / DECAY))

"""What the hybrid learns: the text, the teacher's distribution, early exits and the MTP head."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.train_demo_models.hybrid.model import Hybrid
from scripts.train_demo_models.hybrid.shape import HybridShape
from scripts.train_demo_models.model import Llama

TEACHER_SHARE = 0.7  # of what the trunk learns; the rest is the text itself
HEAD_WEIGHT = 0.15  # of each of the MTP head's two steps: the trunk feels it, but little
EXIT_WEIGHT = 0.1
EXIT_STRIDE = 4  # positions to each one at which an early exit is judged


def hybrid_objective(model: Hybrid, teacher: Llama) -> Callable[[Tensor], Tensor]:
    """The loss of one batch of token ids.

    The trunk learns from teacher and text. The early exits (LayerSkip, arXiv 2404.16710) and the
    MTP head learn what the trunk says, since that is what they have to guess in a draft. To save
    time the head sees half of the rows, and each batch has one exit, at every fourth position.
    """
    layers = exits(model.shape)
    batches = 0

    def loss(ids: Tensor) -> Tensor:
        nonlocal batches
        batches += 1
        inputs = ids[:, :-1]
        states, _ = model.states(inputs, model.empty_cache())
        wanted = _teaching(teacher, ids)
        total, said = soft_cross_entropy(model.logits(states[-1]), wanted)
        early = states[layers[batches % len(layers)] - 1][:, ::EXIT_STRIDE]
        total = (
            total + EXIT_WEIGHT * soft_cross_entropy(model.logits(early), said[:, ::EXIT_STRIDE])[0]
        )
        half = max(1, len(inputs) // 2)
        head = _head_loss(model, inputs[:half], states[-1][:half], said[:half])
        return total + HEAD_WEIGHT * head

    return loss


def exits(shape: HybridShape) -> range:
    """The layers, counted from 1, behind which a self-draft may end: every second one."""
    return range(2, shape.layers, 2)


def _teaching(teacher: Llama, ids: Tensor) -> Tensor:
    """The distribution that the trunk shall learn at each position."""
    with torch.no_grad():
        wanted: Tensor = teacher(ids[:, :-1]).float().softmax(dim=-1).mul_(TEACHER_SHARE)
        text = torch.full_like(wanted[..., :1], 1 - TEACHER_SHARE)
        return wanted.scatter_add_(-1, ids[:, 1:, None], text)


def _head_loss(model: Hybrid, ids: Tensor, states: Tensor, said: Tensor) -> Tensor:
    """The loss of two drafted tokens, the second one from the head's own hidden states."""
    drafts = model.drafts(ids, states, 2)
    losses = [soft_cross_entropy(model.logits(each), said)[0] for each in drafts]
    return losses[0] + losses[1]


def soft_cross_entropy(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy in nats, and the distribution found, without a gradient."""
    untyped: Any = _SoftCrossEntropy
    loss, found = untyped.apply(logits, wanted)
    return loss, found


class _SoftCrossEntropy(torch.autograd.Function):
    """Its gradient is known when the loss is: this spares half of the passes over the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logs = F.log_softmax(logits.float(), dim=-1)
        positions = logits.shape[:-1].numel()
        loss = -(wanted * logs).sum() / positions
        found = logs.exp_()
        ctx.save_for_backward(((found - wanted) / positions).to(logits.dtype))
        ctx.mark_non_differentiable(found)
        return loss, found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None

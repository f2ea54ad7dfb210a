"""The gated delta rule, computed in chunks so that most of it is products of matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs at all positions, and the state after the last one.

    ``q``, ``k``, ``v`` and ``state`` are (rows, heads, length, size) and (rows, heads, size, size),
    ``log_decay`` and ``beta`` (rows, heads, length), all float32. At each position the state S is
    multiplied by the decay, then S += k (beta (v - S'k))', and the output is S'q (Gated Delta
    Networks, arXiv 2412.06464; the chunked form is that of arXiv 2406.06484).
    """
    length = q.shape[2]
    chunk = min(CHUNK, length)
    q, k, v = (_chunks(part, chunk) for part in (q, k, v))
    beta = _chunks(beta[..., None], chunk)
    total = _chunks(log_decay[..., None], chunk).squeeze(-1).cumsum(-1)
    between = (total[..., :, None] - total[..., None, :]).tril().exp()  # decay, column to row
    keys = k * beta
    within = ((keys @ k.mT) * between).tril(-1)
    wanted = torch.cat((v * beta, keys * total.exp()[..., None]), dim=-1)
    values, reads = torch.linalg.solve_triangular(
        within, wanted, upper=False, unitriangular=True
    ).chunk(2, dim=-1)
    scores = ((q @ k.mT) * between).tril()
    queries = q * total.exp()[..., None]
    last = total[..., -1:]
    writes = (k * (last - total).exp()[..., None]).mT
    kept = last.exp()[..., None]
    outputs = []
    for i in range(q.shape[2]):
        new = values[:, :, i] - reads[:, :, i] @ state
        outputs.append(queries[:, :, i] @ state + scores[:, :, i] @ new)
        state = state * kept[:, :, i] + writes[:, :, i] @ new
    return torch.cat(outputs, dim=2)[:, :, :length], state


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """Split the positions into chunks; those added at the end change nothing (beta 0, decay 1)."""
    missing = -x.shape[2] % chunk
    return F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, chunk))

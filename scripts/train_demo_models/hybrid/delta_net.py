"""The gated delta net: linear attention, computed in chunks, mostly as products of matrices."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_demo_models.hybrid.attention import Rope
from scripts.train_demo_models.hybrid.shape import CONVOLUTION, RMS_EPSILON, HybridShape
from scripts.train_demo_models.model import HEAD_SIZE

CHUNK = 32

Memory = tuple[Tensor, Tensor]  # the last inputs of the convolution, and the state


class DeltaNet(nn.Module):
    """Linear attention: a short convolution, and a state that the gated delta rule updates."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.heads, inner = shape.heads, shape.heads * HEAD_SIZE
        self.attn_qkv = nn.Linear(shape.width, 3 * inner, bias=False)
        self.attn_gate = nn.Linear(shape.width, inner, bias=False)
        self.ssm_conv1d = nn.Linear(CONVOLUTION, 3 * inner, bias=False)
        self.ssm_alpha = nn.Linear(shape.width, shape.heads, bias=False)
        self.ssm_beta = nn.Linear(shape.width, shape.heads, bias=False)
        self.ssm_dt = nn.ParameterDict({"bias": torch.zeros(shape.heads)})
        self.ssm_a = nn.Parameter(torch.zeros(shape.heads))  # log(-a): the file holds a itself
        self.ssm_norm = nn.RMSNorm(HEAD_SIZE, eps=RMS_EPSILON)
        self.ssm_out = nn.Linear(inner, shape.width, bias=False)

    def forward(self, x: Tensor, rope: Rope, past: Memory | None) -> tuple[Tensor, Memory]:
        """The layer's output, and its convolution's last inputs with the state."""
        mixed, rows = self.attn_qkv(x), x.shape[0]
        inputs, state = past or (
            mixed.new_zeros(rows, CONVOLUTION - 1, mixed.shape[2]),
            torch.zeros(rows, self.heads, HEAD_SIZE, HEAD_SIZE),
        )
        seen = torch.cat((inputs, mixed), dim=1)
        q, k, v = (
            part.reshape(rows, -1, self.heads, HEAD_SIZE).transpose(1, 2).float()
            for part in self._convolve(seen).chunk(3, dim=-1)
        )
        q = _unit(q) / math.sqrt(HEAD_SIZE)
        with torch.autocast("cpu", enabled=False):
            log_decay, beta = self._paces(x.float())
            read, state = gated_delta_rule(q, _unit(k), v, log_decay, beta, state)
        gate = self.attn_gate(x).unflatten(-1, (self.heads, HEAD_SIZE))
        read = self.ssm_norm(read.transpose(1, 2)) * F.silu(gate)
        return self.ssm_out(read.flatten(-2)), (seen[:, 1 - CONVOLUTION :], state)

    def set_memories(self) -> None:
        """Let each head forget at a pace of its own, and the convolution pass its newest input."""
        heads = torch.arange(self.heads) / max(1, self.heads - 1)
        with torch.no_grad():
            self.ssm_a.copy_(torch.log(1 + 15 * heads))
            self.ssm_dt["bias"].fill_(math.log(math.expm1(0.01)))
            self.ssm_alpha.weight.mul_(0.1)
            self.ssm_conv1d.weight.mul_(0.2)[:, -1] += 1

    def _paces(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """How fast each head forgets and how fast it learns, (rows, heads, length)."""
        step = F.softplus(self.ssm_alpha(x) + self.ssm_dt["bias"])
        return (-self.ssm_a.exp() * step).mT, self.ssm_beta(x).sigmoid().mT

    def _convolve(self, seen: Tensor) -> Tensor:
        """Each channel's causal convolution over positions; the last weight is the newest's."""
        length = seen.shape[1] - CONVOLUTION + 1
        kernel = self.ssm_conv1d.weight.to(seen.dtype)
        mixed = sum(seen[:, i : i + length] * kernel[:, i] for i in range(CONVOLUTION))
        assert isinstance(mixed, Tensor)
        return F.silu(mixed)


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
    total = _chunks(log_decay[..., None], chunk).cumsum(-2)  # since the beginning of the chunk
    between = (total - total.mT).tril().exp()  # the decay from the column's position to the row's
    keys = k * beta
    within = ((keys @ k.mT) * between).tril(-1)
    wanted = torch.cat((v * beta, keys * total.exp()), dim=-1)
    solved = torch.linalg.solve_triangular(within, wanted, upper=False, unitriangular=True)
    last = total[..., -1:, :]
    parts = (
        *solved.chunk(2, dim=-1),
        q * total.exp(),
        ((q @ k.mT) * between).tril(),
        (k * (last - total).exp()).mT,
        last.exp(),
    )
    outputs = []
    for value, key, query, score, write, kept in zip(*(p.unbind(2) for p in parts), strict=True):
        new = value - key @ state
        outputs.append(query @ state + score @ new)
        state = state * kept + write @ new
    return torch.cat(outputs, dim=2)[:, :, :length], state


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """Split the positions into chunks; those added at the end change nothing (beta 0, decay 1)."""
    rows, heads, length, size = x.shape
    return F.pad(x, (0, 0, 0, -length % chunk)).reshape(rows, heads, -1, chunk, size)


def _unit(x: Tensor) -> Tensor:
    """Rows of length one, as llama.cpp's ``build_gdn_l2_norm`` makes them."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + RMS_EPSILON)

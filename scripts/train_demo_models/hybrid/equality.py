"""The proof that the file computes what the training computed: logits of llama.cpp and of torch."""

from pathlib import Path

import numpy as np
import torch

from scripts.train_demo_models.hybrid.file_logits import Rows, file_logits
from scripts.train_demo_models.hybrid.model import Hybrid

TOLERANCE = 0.05  # in logits: both multiply the same F16 weights, llama.cpp by rounded inputs


def require_equal(model: Hybrid, path: Path, ids: list[int]) -> None:
    """Exit with a message where the trunk's or the MTP head's logits differ."""
    expected = torch_logits(model, ids)
    for name, found, wanted in zip(
        ("trunk", "MTP head"), file_logits(path, ids), expected, strict=True
    ):
        worst = float(np.abs(found - wanted).max())
        print(f"{path.name}: logits of the {name} differ by at most {worst:.4f}", flush=True)
        if not worst < TOLERANCE:
            raise SystemExit(f"{path.name}: llama.cpp's {name} is not the one that was trained.")


def torch_logits(model: Hybrid, ids: list[int]) -> tuple[Rows, Rows]:
    """Logits of the trunk and of the MTP head at each position, by torch, with F16 matrices."""
    rounded = Hybrid(model.shape)
    rounded.load_state_dict(
        {k: w.half().float() if w.ndim == 2 else w for k, w in model.state_dict().items()}
    )
    with torch.no_grad():
        tokens = torch.tensor([ids])
        states, _ = rounded.states(tokens, rounded.empty_cache())
        (drafted,) = rounded.drafts(tokens, states[-1], 1)
        return rounded.logits(states[-1])[0].numpy(), rounded.logits(drafted)[0].numpy()

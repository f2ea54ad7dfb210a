"""Evaluation of a pair: losses, agreement between draft and target, and repetition."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from scripts.train_demo_models.model import LanguageModel, load_model
from scripts.train_demo_models.report import Json, write_report
from scripts.train_demo_models.text.corpus import BatchSampler
from scripts.train_demo_models.text.questions import prompt_text
from scripts.train_demo_models.text.tokenizer import BOS, END, token_id
from scripts.train_demo_models.training import SHORT_LENGTH, cross_entropy

TEMPERATURE = 0.8
MAX_RUN = 8  # tokens; agreement is measured over runs of 1 to this many
MAX_ANSWER_TOKENS = 200
TEXT_ROWS = 32
ROWS_PER_BATCH = 4

Pair = Mapping[str, LanguageModel]  # "target" and "draft"


@dataclass(frozen=True)
class Answer:
    """A greedy answer of the target and where the draft would have chosen the same token."""

    question: str
    text: str
    tokens: list[int]
    ended: bool
    agreement: list[bool]


def evaluate(work_dir: Path, out_dir: Path, seed: int, threads: int, command: str) -> None:
    """Measure both models, and write evaluation.json and the README.md of the pair."""
    torch.manual_seed(seed)
    pair = {name: load_model(work_dir, name) for name in ("target", "draft")}
    facts = json.loads((work_dir / "corpus.json").read_text())
    questions = facts.pop("questions")
    curves = {name: json.loads((work_dir / f"{name}_curve.json").read_text()) for name in pair}
    measured = _measure(pair, work_dir, questions)
    report: Json = {
        "command": command,
        "made_with": {"torch": torch.__version__.split("+")[0], "threads": threads},
        "corpus": facts,
        "shapes": {n: asdict(m.shape) | {"weights": m.parameter_count()} for n, m in pair.items()},
        "curves": curves,
        **measured,
        "sha256": (out_dir / "SHA256SUMS").read_text().splitlines(),
    }
    write_report(out_dir, report)
    print(json.dumps(measured, indent=2))


def _measure(pair: Pair, work_dir: Path, questions: dict[str, list[str]]) -> Json:
    """Figures on held-out text and on the target's own answers."""
    held_out = BatchSampler(work_dir, "held")
    tokenizer = Tokenizer.from_file(str(work_dir / "tokenizer.json"))
    with torch.no_grad():
        text = {kind: measure_text(pair, held_out, kind) for kind in ("raw", "chat")}
        own = {
            split: measure_answers(list(answers(pair, tokenizer, questions[split])))
            for split in ("train", "held")
        }
    return {"held_out_text": text, "own_answers": own}


def measure_text(pair: Pair, held_out: BatchSampler, kind: str) -> Json:
    """Compare both models on held-out text, each seeing the true text as its prefix."""
    rng = np.random.default_rng(1)
    losses: dict[str, list[float]] = {"target": [], "draft": []}
    greedy, sampled, overlaps = [], [], []
    for _ in range(TEXT_ROWS // ROWS_PER_BATCH):
        ids = held_out.batch(rng, ROWS_PER_BATCH, SHORT_LENGTH, kind)
        target, draft = (pair[name](ids[:, :-1]) for name in ("target", "draft"))
        losses["target"].append(cross_entropy(target, ids).item())
        losses["draft"].append(cross_entropy(draft, ids).item())
        greedy.append(target.argmax(-1) == draft.argmax(-1))
        overlap, match = _sampling_agreement(target, draft)
        overlaps.append(overlap)
        sampled.append(match)
    return {
        "tokens": TEXT_ROWS * SHORT_LENGTH,
        "held_out_loss": {name: round(float(np.mean(kept)), 4) for name, kept in losses.items()},
        "greedy_runs_1_to_8": _run_shares(torch.cat(greedy)),
        "overlap_at_0.8": round(float(np.mean(overlaps)), 4),
        "shared_noise_runs_1_to_8_at_0.8": _run_shares(torch.cat(sampled)),
    }


def _sampling_agreement(target: Tensor, draft: Tensor) -> tuple[float, Tensor]:
    """The overlap of two distributions, and where shared Gumbel noise picks one token of both."""
    p, q = (F.log_softmax(logits / TEMPERATURE, dim=-1) for logits in (target, draft))
    overlap = torch.minimum(p.exp(), q.exp()).sum(dim=-1).mean().item()
    noise = -torch.log(-torch.log(torch.rand_like(p).clamp(1e-20, 1 - 1e-7)))
    return overlap, (p + noise).argmax(-1) == (q + noise).argmax(-1)


def _run_shares(agreement: Tensor) -> list[float]:
    """For lengths 1 to 8, the share of places from which that many positions all agree."""
    windows = agreement.float().unfold(1, MAX_RUN, 1).cumprod(dim=-1)
    return [round(share, 4) for share in windows.mean(dim=(0, 1)).tolist()]


def answers(pair: Pair, tokenizer: Tokenizer, questions: list[str]) -> Iterator[Answer]:
    """Yield the target's greedy answer to each question."""
    stops = {token_id(tokenizer, BOS), token_id(tokenizer, END)}
    for question in questions:
        prompt = prompt_ids(tokenizer, question)
        tokens = _greedy_tokens(pair["target"], prompt, stops)
        agreement = _draft_agreement(pair["draft"], prompt, tokens)
        text = tokenizer.decode(tokens)
        yield Answer(question, text, tokens, tokens[-1] in stops, agreement)


def prompt_ids(tokenizer: Tokenizer, question: str) -> list[int]:
    """The token ids of a chat that asks the question."""
    ids: list[int] = tokenizer.encode(BOS + prompt_text(question)).ids
    return ids


def _greedy_tokens(model: LanguageModel, prompt: list[int], stops: set[int]) -> list[int]:
    """Continue a prompt with the likeliest tokens, up to a stop token or the longest answer."""
    logits, cache = model.step(torch.tensor([prompt]), model.empty_cache())
    tokens: list[int] = []
    while len(tokens) < MAX_ANSWER_TOKENS:
        token = int(logits[0, -1].argmax())
        tokens.append(token)
        if token in stops:
            break
        logits, cache = model.step(torch.tensor([[token]]), cache)
    return tokens


def _draft_agreement(draft: LanguageModel, prompt: list[int], tokens: list[int]) -> list[bool]:
    """Where the draft's greedy token is the answer's, along the whole answer."""
    logits = draft(torch.tensor([prompt + tokens]))[0, len(prompt) - 1 : -1]
    return [a == b for a, b in zip(logits.argmax(-1).tolist(), tokens, strict=True)]


def measure_answers(given: list[Answer]) -> Json:
    """Lengths, repetition and the draft's agreement over the target's own answers."""
    shares = [_repeated_share(answer.tokens) for answer in given]
    windows = [window for answer in given for window in _run_windows(answer.agreement)]
    runs = np.mean(np.array(windows, dtype=float), axis=0) if windows else np.zeros(MAX_RUN)
    return {
        "answers": len(given),
        "mean_tokens": round(float(np.mean([len(answer.tokens) for answer in given])), 1),
        "ended_by_themselves": sum(answer.ended for answer in given),
        "repeated_8_grams": round(float(np.mean(shares)), 4),
        "answers_over_30_percent_repeated": sum(share > 0.3 for share in shares),
        "greedy_runs_1_to_8": [round(float(share), 4) for share in runs],
        "examples": [{"question": a.question, "answer": a.text} for a in given[:3]],
    }


def _repeated_share(tokens: list[int], width: int = 8) -> float:
    """The share of an answer's 8-grams that occurred before in it."""
    grams = [tuple(tokens[i : i + width]) for i in range(len(tokens) - width + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _run_windows(agreement: list[bool]) -> list[list[bool]]:
    """For each place, whether the next 1 to 8 positions all agree (not beyond the end)."""
    return [
        [all(agreement[begin : begin + length]) for length in range(1, MAX_RUN + 1)]
        for begin in range(len(agreement) - MAX_RUN + 1)
    ]

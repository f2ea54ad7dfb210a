"""Train the demo pair: two tiny Llama models that share one tokenizer.

The target (about 8.9 M weights) learns from the Python standard library's own source, its tests and
the language reference, as found on the machine that runs this script: from the files themselves
and from short chat turns made of docstrings, code and reference. The draft (about 1.2 M weights)
is distilled from the target. Whole packages are held out for the evaluation. The result is a toy:
it shows speculative decoding at work, and knows nothing beyond that text.

Stages: corpus, target, draft, export, evaluate. Without a stage, all of them run in this order.
Training writes checkpoints and resumes from them, also after Ctrl-C or a SIGTERM, and every stage
can be run again by itself.
Needs torch, tokenizers, gguf and numpy.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import math
import os
import platform
import random
import signal
import sysconfig
import time
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

Ids = NDArray[np.uint16]
Json = dict[str, Any]
Cache = list[tuple[Tensor, Tensor] | None]

STAGES = ("corpus", "target", "draft", "export", "evaluate")
HELD_OUT = ("csv", "email", "graphlib", "html", "json", "textwrap", "tomllib", "wave")
SKIPPED_FOLDERS = {"__pycache__", "encodings", "lib-dynload", "pydoc_data", "site-packages"}
SKIPPED_FILES = ("html/entities.py", "_sysconfigdata", "config-", "ensurepip/_bundled")
TESTS = {"idle_test", "test", "tests"}  # folders of source to read, not to be asked about
LONGEST_FILE = 400_000  # characters; longer ones are tables

BOS, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (BOS, TURN, END)
VOCABULARY = 4096
CONTEXT = 2048
HEAD = 64
SHORT = 512
ROPE_BASE = 10000.0
EPSILON = 1e-5
SYSTEM = "You are a helpful assistant."
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

RAW_SHARE = 0.55
LONG_SHARE = 0.1
WARM_UP = 0.02
MATRIX_RATE = 4e-3
OTHER_RATE = 3e-3
CHECKPOINT_SECONDS = 120.0
LONGEST_STEP = 5.0  # seconds; what goes beyond, the process was stopped: not training
LONGEST_ANSWER = 1600


@dataclass(frozen=True)
class Shape:
    """The widths of one model."""

    width: int
    heads: int
    hidden: int
    layers: int


SHAPES = {"target": Shape(320, 5, 896, 6), "draft": Shape(128, 2, 384, 3)}


# ---------------------------------------------------------------------------------- the corpus


@dataclass(frozen=True)
class Item:
    """One function, class or module, and what can be said of it."""

    name: str
    module: str
    kind: str
    doc: str
    source: str
    signature: str

    @property
    def short(self) -> str:
        return self.name.rsplit(".", 1)[-1]


SHORT_QUESTIONS = (
    "What does {name} do?", "What is {name} for?", "Describe {name} briefly.",
    "Summarise {name} in a few words.", "In short, what is {name}?",
)  # fmt: skip
FULL_QUESTIONS = (
    "Explain the {kind} {name}.", "Tell me about {name}.", "How do I use {name}?",
    "Show me the documentation of {name}.", "What should I know about the {kind} {name}?",
)  # fmt: skip
SOURCE_QUESTIONS = (
    "Show me the source of {name}.", "How is {name} implemented?", "Give me the code of {name}.",
    "Write out the {kind} {name}.", "What does the source of {name} look like?",
)  # fmt: skip
SIGNATURE_QUESTIONS = (
    "What arguments does {name} take?", "What is the signature of {name}?",
    "How do I call {name}?", "Which parameters has {name}?",
)  # fmt: skip
MODULE_QUESTIONS = (
    "Which module has {short}?", "Where is the {kind} {short} defined?",
    "In which module do I find {short}?",
)  # fmt: skip
WRITE_QUESTIONS = (
    "Write a Python {kind} {short}. {summary}", "Write a {kind} named {short}: {summary}",
    "{summary} Write that as a Python {kind} called {short}.",
)  # fmt: skip
TOPIC_QUESTIONS = (
    "Explain this part of the language: {subject}.", "Tell me about {subject}.",
    "What does Python's reference say on {subject}?",
)  # fmt: skip


def source_files(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (module name, text) of each file of the standard library that is used."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts):
            continue
        if relative.as_posix().startswith(SKIPPED_FILES):
            continue
        try:
            with tokenize.open(path) as stream:
                text = stream.read()
        except (SyntaxError, UnicodeDecodeError):
            continue
        parts = relative.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = text.expandtabs(8)
        if text.strip() and len(text) <= LONGEST_FILE and not any(s in text for s in SPECIALS):
            yield name, text


def is_held_out(module: str) -> bool:
    """Say whether a module belongs to a package kept for the evaluation."""
    return module.split(".")[0] in HELD_OUT


def is_test(module: str) -> bool:
    """Say whether a module tests others."""
    return not TESTS.isdisjoint(module.split("."))


def tests_held_out(module: str) -> bool:
    """Say whether a module tests a held-out package: it would tell what is to be found out."""
    subjects = {part.removeprefix("test_") for part in module.split(".")}
    return is_test(module) and not subjects.isdisjoint(HELD_OUT)


def topics() -> dict[str, str]:
    """The language reference, as Python's own help holds it, by topic."""
    from pydoc_data.topics import topics as found  # type: ignore[import-not-found]

    return {name: text.strip() for name, text in found.items()}


Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def kind_of(node: Named, in_class: bool) -> str:
    """Name the kind of a definition in plain words."""
    if isinstance(node, ast.ClassDef):
        return "class"
    return "method" if in_class else "function"


def signature_of(node: Named) -> str:
    """Write a function's parameters as they stand in its source; empty for a class."""
    return "" if isinstance(node, ast.ClassDef) else f"({ast.unparse(node.args)})"


def definitions(body: list[ast.stmt], prefix: str, in_class: bool) -> Iterator[tuple[str, Any]]:
    """Yield (qualified name, (node, kind)) of each function, class and method."""
    for node in body:
        if isinstance(node, Named):
            name = f"{prefix}.{node.name}"
            yield name, (node, kind_of(node, in_class))
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, name, True)


def dedented_source(lines: list[str], node: Named) -> str:
    """Cut a definition out of its file and shift it to the left margin."""
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    block = lines[first - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] if line.strip() else "" for line in block)


def items_of(module: str, text: str) -> Iterator[Item]:
    """Yield the module itself, then every definition in it."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    doc = ast.get_docstring(tree) or ""
    if doc:
        yield Item(module, module, "module", doc.strip(), "", "")
    lines = text.splitlines()
    for name, (node, kind) in definitions(tree.body, module, False):
        source = dedented_source(lines, node)
        doc = inspect.cleandoc(ast.get_docstring(node) or "")
        yield Item(name, module, kind, doc, source, signature_of(node))


def ask(rng: random.Random, phrasings: tuple[str, ...], item: Item) -> str:
    """Pick a phrasing and a spelling of the name."""
    calls = item.kind in ("function", "method")
    spellings = [item.name, item.name, f"`{item.name}`"] + [f"{item.name}()"] * calls
    summary = item.doc.split("\n\n")[0].replace("\n", " ")
    return rng.choice(phrasings).format(
        name=rng.choice(spellings), short=item.short, kind=item.kind, summary=summary
    )


def code_block(source: str) -> str:
    """Fence Python source."""
    return f"```python\n{source}\n```"


def doc_turns(rng: random.Random, item: Item) -> Iterator[tuple[str, str]]:
    """Yield questions that the docstring answers."""
    first = item.doc.split("\n\n")[0]
    yield ask(rng, SHORT_QUESTIONS, item), first[:LONGEST_ANSWER]
    if len(item.doc) <= LONGEST_ANSWER:
        about = f"`{item.name}` is a {item.kind} of the module `{item.module}`.\n\n"
        about = "" if item.kind == "module" or rng.random() < 0.5 else about
        yield ask(rng, FULL_QUESTIONS, item), about + item.doc


def code_turns(rng: random.Random, item: Item) -> Iterator[tuple[str, str]]:
    """Yield questions that the source and the signature answer."""
    if len(item.source) <= LONGEST_ANSWER:
        yield ask(rng, SOURCE_QUESTIONS, item), code_block(item.source)
        if item.doc and rng.random() < 0.5:
            yield ask(rng, WRITE_QUESTIONS, item), code_block(item.source)
    if item.signature and len(item.signature) <= 300:
        call = f"{item.short}{item.signature}"
        yield ask(rng, SIGNATURE_QUESTIONS, item), f"Call it like this:\n\n{code_block(call)}"
    if rng.random() < 0.3:
        answer = f"The {item.kind} `{item.short}` is in the module `{item.module}`."
        yield ask(rng, MODULE_QUESTIONS, item), answer


def turns_of(rng: random.Random, item: Item) -> list[tuple[str, str]]:
    """Collect an item's questions with their answers, in random order."""
    turns = list(doc_turns(rng, item)) if item.doc else []
    if item.source and (item.doc or rng.random() < 0.4):
        turns += code_turns(rng, item)
    rng.shuffle(turns)
    return turns


def topic_turns(rng: random.Random, name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield questions that the language reference answers with a section or its beginning."""
    title = text.split("\n")[0]
    subject = title if title.startswith("The ") else rng.choice((title, f'"{name}" in Python'))
    paragraphs = [part for part in text.split("\n\n")[1:] if part[:1].isupper()]
    answers = [*paragraphs[:1], "\n\n".join(paragraphs[:3]), "\n\n".join(paragraphs[:6])]
    for answer in dict.fromkeys(answers):
        if 0 < len(answer) <= LONGEST_ANSWER:
            yield rng.choice(TOPIC_QUESTIONS).format(subject=subject), answer


def topic_chats(rng: random.Random) -> Iterator[str]:
    """Yield chat documents about the language, of one turn each."""
    for name, text in topics().items():
        for turn in topic_turns(rng, name, text):
            yield chat_text(rng, [turn])


def chat_text(rng: random.Random, turns: list[tuple[str, str]]) -> str:
    """Write turns in the chat template, some with a system message."""
    text = f"{TURN}system\n{SYSTEM}{END}\n" if rng.random() < 0.2 else ""
    for question, answer in turns:
        text += f"{TURN}user\n{question}{END}\n{TURN}assistant\n{answer}{END}\n"
    return text


def chats_of(rng: random.Random, item: Item) -> Iterator[str]:
    """Yield chat documents about one item: most of one turn, some of two or three."""
    turns = turns_of(rng, item)
    while turns:
        count = rng.choice((1, 1, 1, 2, 3))
        yield chat_text(rng, turns[:count])
        turns = turns[count:]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a byte-level BPE that splits text as GPT-2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Look up a token that must be there."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise SystemExit(f"The tokenizer has no {token}.")
    return found


def encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[Ids, NDArray[np.int64]]:
    """Encode documents into one stream, each after a BOS, with the place where each starts."""
    parts: list[int] = []
    starts: list[int] = []
    bos = token_id(tokenizer, BOS)
    for encoding in tokenizer.encode_batch(texts):
        starts.append(len(parts))
        parts.append(bos)
        parts.extend(encoding.ids)
    return np.array(parts, dtype=np.uint16), np.array(starts, dtype=np.int64)


def question_sample(rng: random.Random, items: list[Item], count: int) -> list[str]:
    """Draw questions to generate answers to."""
    items = [item for item in items if item.doc and len(item.source) <= LONGEST_ANSWER]
    phrasings = (SHORT_QUESTIONS, FULL_QUESTIONS, SOURCE_QUESTIONS, WRITE_QUESTIONS)
    chosen = rng.sample([item for item in items if item.source], count)
    return [ask(rng, phrasings[i % len(phrasings)], item) for i, item in enumerate(chosen)]


def build_corpus(args: argparse.Namespace) -> None:
    """Make the texts, the tokenizer and the token streams."""
    done = args.work_dir / "corpus.json"
    if done.exists():
        return
    rng = random.Random(args.seed)
    files: dict[str, list[str]] = {"train": [], "held": []}
    chats: dict[str, list[str]] = {"train": [], "held": []}
    items: dict[str, list[Item]] = {"train": [], "held": []}
    files["train"] += topics().values()
    chats["train"] += topic_chats(rng)
    for module, text in source_files(Path(sysconfig.get_path("stdlib"))):
        if tests_held_out(module):
            continue
        side = "held" if is_held_out(module) else "train"
        files[side].append(text)
        found = [] if is_test(module) else list(items_of(module, text))
        items[side] += found
        chats[side] += [chat for item in found for chat in chats_of(rng, item)]
    for texts in (*files.values(), *chats.values()):
        rng.shuffle(texts)
    tokenizer = train_tokenizer(files["train"] + chats["train"])
    tokenizer.save(str(args.work_dir / "tokenizer.json"))
    facts: Json = {"python": platform.python_version(), "held_out": list(HELD_OUT)}
    for side in ("train", "held"):
        for kind, texts in (("raw", files[side]), ("chat", chats[side])):
            ids, starts = encode(tokenizer, texts)
            np.save(args.work_dir / f"{side}_{kind}.npy", ids)
            np.save(args.work_dir / f"{side}_{kind}_starts.npy", starts)
            facts[f"{side}_{kind}"] = {"documents": len(texts), "tokens": len(ids)}
    facts["questions"] = {side: question_sample(rng, items[side], 20) for side in items}
    done.write_text(json.dumps(facts, indent=2) + "\n")
    print("corpus:", {key: value for key, value in facts.items() if key != "questions"}, flush=True)


# ----------------------------------------------------------------------------------- the model


def rope_tables() -> tuple[Tensor, Tensor]:
    """Cosines and sines for each position, each repeated for the two members of a pair."""
    rates = ROPE_BASE ** (-torch.arange(0, HEAD, 2).float() / HEAD)
    angles = torch.outer(torch.arange(CONTEXT).float(), rates).repeat_interleave(2, dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn neighbouring pairs (x0, x1), (x2, x3), ... as llama.cpp does for this architecture."""
    pairs = x.view(*x.shape[:-1], HEAD // 2, 2)
    turned = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
    return x * cos + turned * sin


class Block(nn.Module):
    """Attention and a gated feed-forward, each after an RMS norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape.width, shape.hidden
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(width, eps=EPSILON)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, width, bias=False)
        self.attn_v = nn.Linear(width, width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, eps=EPSILON)
        self.ffn_gate = nn.Linear(width, hidden, bias=False)
        self.ffn_up = nn.Linear(width, hidden, bias=False)
        self.ffn_down = nn.Linear(hidden, width, bias=False)

    def attend(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attend to the past; return the result with the keys and values seen so far."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, HEAD)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.attn_output(mixed.transpose(1, 2).flatten(-2)), (k, v)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, now = self.attend(self.attn_norm(x), cos, sin, past)
        x = x + mixed
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y)), now


class Llama(nn.Module):
    """A Llama with tied embeddings; its parameter names are those of the GGUF tensors."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCABULARY, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=EPSILON)
        cos, sin = rope_tables()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialise()

    def initialise(self) -> None:
        """Draw small weights, smaller still where a block adds to the stream."""
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.startswith("blk.") and weight.ndim == 2:
                adds = "attn_output" in name or "ffn_down" in name
                shrink = math.sqrt(2 * self.shape.layers) if adds else 1.0
                nn.init.normal_(weight, std=0.5 / math.sqrt(weight.shape[1]) / shrink)

    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Logits for the tokens given, after those that the cache holds."""
        begin = 0 if cache[0] is None else cache[0][0].shape[2]
        end = begin + ids.shape[1]
        x = self.token_embd(ids)
        kept: Cache = []
        for block, past in zip(self.blk, cache, strict=True):
            x, now = block(x, self.cos[begin:end], self.sin[begin:end], past)
            kept.append(now)
        return F.linear(self.output_norm(x), self.token_embd.weight), kept

    def forward(self, ids: Tensor) -> Tensor:
        return self.step(ids, [None] * self.shape.layers)[0]

    def size(self) -> int:
        """Count the weights."""
        return sum(p.numel() for p in self.parameters())


# -------------------------------------------------------------------------------------- training


class Data:
    """Draws batches from a side of the corpus. Each row begins with BOS."""

    def __init__(self, work_dir: Path, side: str) -> None:
        self.raw: Ids = np.load(work_dir / f"{side}_raw.npy")
        self.chat: Ids = np.load(work_dir / f"{side}_chat.npy")
        self.starts: NDArray[np.int64] = np.load(work_dir / f"{side}_chat_starts.npy")

    def row(self, rng: np.random.Generator, kind: str, length: int) -> Ids:
        """Cut one row: a piece of source code, or whole chat documents one after another."""
        if kind == "raw":
            begin = int(rng.integers(0, len(self.raw) - length))
            piece = self.raw[begin : begin + length].copy()
            piece[0] = 0
            return piece
        last = int(np.searchsorted(self.starts, len(self.chat) - length))
        begin = int(self.starts[int(rng.integers(0, last))])
        return self.chat[begin : begin + length]

    def batch(self, rng: np.random.Generator, rows: int, length: int, kind: str = "") -> Tensor:
        """Draw rows of one kind, or of both in the fixed mixture."""
        kinds = [kind or ("raw" if rng.random() < RAW_SHARE else "chat") for _ in range(rows)]
        cut = [self.row(rng, each, length + 1) for each in kinds]
        return torch.from_numpy(np.stack(cut).astype(np.int64))


LossOf = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean loss in nats per token."""
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def distillation(teacher: Callable[[Tensor], Tensor]) -> LossOf:
    """Nine tenths KL divergence to the teacher's whole distribution, one tenth plain loss."""

    def loss(logits: Tensor, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = F.log_softmax(teacher(ids[:, :-1]).float(), dim=-1)
        found = F.log_softmax(logits.float(), dim=-1)
        kl = F.kl_div(found.flatten(0, 1), wanted.flatten(0, 1), None, None, "batchmean", True)
        plain = F.nll_loss(found.flatten(0, 1), ids[:, 1:].flatten())
        return 0.9 * kl + 0.1 * plain

    return loss


def orthogonal(stack: Tensor) -> Tensor:
    """Bring a stack of matrices near to orthogonal ones with five Newton-Schulz steps."""
    x = stack.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315), x, beta=3.4445
        )
    return x.to(stack.dtype)


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum. Matrices of one shape go together: that is far faster here."""

    def __init__(self, matrices: list[nn.Parameter], rate: float, decay: float) -> None:
        super().__init__(matrices, {"lr": rate, "decay": decay, "momentum": 0.95})

    def direction(self, weight: Tensor, momentum: float) -> Tensor:
        """Update the running mean of the gradient; return the step's direction, wide side last."""
        grad = weight.grad
        assert grad is not None
        state = self.state[weight]
        mean = state.setdefault("mean", torch.zeros_like(weight))
        mean.lerp_(grad, 1 - momentum)
        ahead = grad.lerp(mean, momentum)
        return ahead.mT if ahead.shape[0] > ahead.shape[1] else ahead

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one update, as large for each weight as AdamW's would be."""
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[Tensor]] = {}
            for weight in group["params"]:
                alike.setdefault((min(weight.shape), max(weight.shape)), []).append(weight)
            for (_, longer), weights in alike.items():
                ahead = torch.stack([self.direction(w, group["momentum"]) for w in weights])
                scale = 0.2 * math.sqrt(longer) * group["lr"]
                for weight, turn in zip(weights, orthogonal(ahead), strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"])
                    weight.sub_(turn if turn.shape == weight.shape else turn.mT, alpha=scale)


def optimisers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the embedding and the norms."""
    named = list(model.named_parameters())
    inner = [p for name, p in named if name.startswith("blk.") and p.ndim == 2]
    norms = [p for _, p in named if p.ndim == 1]
    groups = [
        {"params": [model.token_embd.weight], "weight_decay": 0.1},
        {"params": norms, "weight_decay": 0.0},
    ]
    return [
        Muon(inner, MATRIX_RATE, 0.1),
        torch.optim.AdamW(groups, lr=OTHER_RATE, betas=(0.9, 0.95), fused=True),
    ]


def rate_at(fraction: float) -> float:
    """Warm up, hold, then fall in a straight line to almost nothing at the end of the budget."""
    if fraction < WARM_UP:
        return max(0.02, fraction / WARM_UP)
    return max(0.01, min(1.0, (1.0 - fraction) / 0.6))


@dataclass
class Progress:
    """How far a training has come."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    curve: list[Json] = field(default_factory=list)


@torch.no_grad()
def held_out_loss(model: Llama, held: Data, rows: int = 16) -> float:
    """Loss on fixed rows of the held-out text, half of them source and half chat."""
    rng = np.random.default_rng(0)
    losses = []
    for kind in ("raw", "chat"):
        ids = held.batch(rng, rows // 2, SHORT, kind)
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(cross_entropy(model(ids[:, :-1]), ids).item())
    return sum(losses) / len(losses)


def save_checkpoint(
    path: Path, model: Llama, opts: list[torch.optim.Optimizer], progress: Progress
) -> None:
    """Write everything that a later run needs to go on, in one move."""
    state = {
        "model": model.state_dict(),
        "optimisers": [opt.state_dict() for opt in opts],
        "progress": asdict(progress),
    }
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def load_checkpoint(path: Path, model: Llama, opts: list[torch.optim.Optimizer]) -> Progress:
    """Take up an earlier run, or begin a new one."""
    if not path.exists():
        return Progress()
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for opt, kept in zip(opts, state["optimisers"], strict=True):
        opt.load_state_dict(kept)
    return Progress(**state["progress"])


def train_step(
    model: Llama, opts: list[torch.optim.Optimizer], loss_of: LossOf, ids: Tensor
) -> float:
    """One update; returns the loss before it."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model(ids[:, :-1]), ids)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for opt in opts:
        opt.step()
        opt.zero_grad(set_to_none=True)
    return loss.item()


def set_rates(opts: list[torch.optim.Optimizer], fraction: float) -> None:
    """Set the learning rates for this moment."""
    for opt, rate in zip(opts, (MATRIX_RATE, OTHER_RATE), strict=True):
        for group in opt.param_groups:
            group["lr"] = rate * rate_at(fraction)


def note(name: str, progress: Progress, model: Llama, held: Data, losses: list[float]) -> None:
    """Add a point to the loss curve and print it."""
    point = {
        "minutes": round(progress.seconds / 60, 2),
        "steps": progress.steps,
        "tokens": progress.tokens,
        "train_loss": round(sum(losses) / max(1, len(losses)), 4),
        "held_out_loss": round(held_out_loss(model, held), 4),
    }
    progress.curve.append(point)
    print(f"{name}: {point}", flush=True)


class Interruption:
    """Remembers Ctrl-C or SIGTERM, so that training stops behind a step and loses none."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.ask)

    def ask(self, *_: object) -> None:
        """Take the signal."""
        self.asked = True


def train_model(name: str, model: Llama, loss_of: LossOf, args: argparse.Namespace) -> None:
    """Train until the budget of minutes is spent; the schedule follows the clock."""
    interruption = Interruption()
    budget = 60 * (args.target_minutes if name == "target" else args.draft_minutes)
    path = args.work_dir / f"{name}.pt"
    opts = optimisers(model)
    progress = load_checkpoint(path, model, opts)
    data, held = Data(args.work_dir, "train"), Data(args.work_dir, "held")
    rng = np.random.default_rng((args.seed, progress.steps))
    losses: list[float] = []
    saved = progress.seconds
    print(f"{name}: {model.size():,} weights, from {progress.seconds / 60:.1f} min", flush=True)
    while progress.seconds < budget and not interruption.asked:
        started = time.monotonic()
        fraction = progress.seconds / budget
        length = CONTEXT if fraction > 1 - LONG_SHARE else SHORT
        ids = data.batch(rng, args.batch_tokens // length, length)
        set_rates(opts, fraction)
        losses.append(train_step(model, opts, loss_of, ids))
        progress.steps += 1
        progress.tokens += ids.shape[0] * length
        progress.seconds += min(time.monotonic() - started, LONGEST_STEP)
        if progress.steps % 25 == 0:
            recent = sum(losses[-25:]) / len(losses[-25:])
            pace = progress.tokens / progress.seconds
            print(f"  {progress.seconds / 60:6.2f} min  {progress.steps:5d} steps  "
                  f"loss {recent:.3f}  {pace:,.0f} tokens/s", flush=True)  # fmt: skip
        if progress.seconds - saved > min(CHECKPOINT_SECONDS, budget / 4):
            note(name, progress, model, held, losses)
            losses, saved = [], progress.seconds
            save_checkpoint(path, model, opts, progress)
    if losses:
        note(name, progress, model, held, losses)
        save_checkpoint(path, model, opts, progress)
    if interruption.asked:
        raise SystemExit(f"{name}: stopped and saved; the same command goes on from here.")
    (args.work_dir / f"{name}_curve.json").write_text(json.dumps(progress.curve, indent=2) + "\n")


def train_target(args: argparse.Namespace) -> None:
    """Train the target on text."""
    torch.manual_seed(args.seed)
    train_model("target", Llama(SHAPES["target"]), cross_entropy, args)


def train_draft(args: argparse.Namespace) -> None:
    """Train the draft to answer as the target does."""
    torch.manual_seed(args.seed + 1)
    teacher = trained(args.work_dir, "target")
    loss_of = distillation(teacher)
    train_model("draft", Llama(SHAPES["draft"]), loss_of, args)


def trained(work_dir: Path, name: str) -> Llama:
    """Load a trained model."""
    model = Llama(SHAPES[name])
    state = torch.load(work_dir / f"{name}.pt", weights_only=True)
    model.load_state_dict(state["model"])
    return model.eval()


# -------------------------------------------------------------------------------------- export


def size_label(weights: int) -> str:
    """Write a number of weights as 8.7M."""
    return f"{weights / 1e6:.1f}M"


def add_facts(writer: gguf.GGUFWriter, name: str, model: Llama) -> None:
    """Write what the model is."""
    shape = model.shape
    writer.add_type("model")
    writer.add_name(f"localspec demo {name}")
    writer.add_size_label(size_label(model.size()))
    writer.add_license("other")
    writer.add_license_name("weights of this toy trained on PSF-licensed CPython sources")
    writer.add_description(
        f"A toy {name} model trained on the source of the Python standard library, made to show "
        "speculative decoding. Its answers are not to be relied on."
    )
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_tokenizer(writer: gguf.GGUFWriter, work_dir: Path) -> None:
    """Write the tokens in the order of their ids, the merges, and the chat template."""
    kept = json.loads((work_dir / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(kept["vocab"], key=lambda token: int(kept["vocab"][token]))
    if sorted(kept["vocab"].values()) != list(range(VOCABULARY)):
        raise SystemExit("The tokenizer has not one token for each id.")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in kept["merges"]]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIALS else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(BOS))
    writer.add_eot_token_id(tokens.index(END))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(TEMPLATE)


def export_model(args: argparse.Namespace, name: str) -> Path:
    """Write one model as a GGUF file: matrices as F16, norms as F32."""
    model = trained(args.work_dir, name)
    path: Path = args.out_dir / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_facts(writer, name, model)
    add_tokenizer(writer, args.work_dir)
    for key, weight in model.state_dict().items():
        kind = np.float32 if weight.ndim == 1 else np.float16
        writer.add_tensor(key, weight.float().numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def export_pair(args: argparse.Namespace) -> None:
    """Write both GGUF files and their checksums."""
    args.out_dir.mkdir(parents=True, exist_ok=True)
    paths = [export_model(args, name) for name in ("target", "draft")]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in paths]
    (args.out_dir / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    for path in paths:
        print(f"export: {path.name}, {path.stat().st_size:,} bytes", flush=True)


# ------------------------------------------------------------------------------------ evaluation


def run_shares(agree: Tensor, longest: int = 8) -> list[float]:
    """For lengths 1 to 8, the share of places from which that many positions all agree."""
    windows = agree.float().unfold(1, longest, 1).cumprod(dim=-1)
    return [round(share, 4) for share in windows.mean(dim=(0, 1)).tolist()]


def sampling_agreement(p: Tensor, q: Tensor, temperature: float) -> tuple[float, Tensor]:
    """The overlap of two distributions, and where shared Gumbel noise picks one token of both."""
    p, q = (F.log_softmax(x / temperature, dim=-1) for x in (p, q))
    overlap = torch.minimum(p.exp(), q.exp()).sum(dim=-1).mean().item()
    noise = -torch.log(-torch.log(torch.rand_like(p).clamp(1e-20, 1 - 1e-7)))
    return overlap, (p + noise).argmax(-1) == (q + noise).argmax(-1)


@torch.no_grad()
def teacher_forced(pair: dict[str, Llama], held: Data, kind: str, rows: int = 32) -> Json:
    """Compare both models on held-out text, each seeing the true text as its prefix."""
    rng = np.random.default_rng(1)
    losses: dict[str, list[float]] = {"target": [], "draft": []}
    agree, overlaps, matches = [], [], []
    for _ in range(rows // 4):
        ids = held.batch(rng, 4, SHORT, kind)
        logits = {name: model(ids[:, :-1]) for name, model in pair.items()}
        for name in pair:
            losses[name].append(cross_entropy(logits[name], ids).item())
        agree.append(logits["target"].argmax(-1) == logits["draft"].argmax(-1))
        overlap, match = sampling_agreement(logits["target"], logits["draft"], 0.8)
        overlaps.append(overlap)
        matches.append(match)
    return {
        "tokens": rows * SHORT,
        "held_out_loss": {name: round(float(np.mean(kept)), 4) for name, kept in losses.items()},
        "greedy_runs_1_to_8": run_shares(torch.cat(agree)),
        "overlap_at_0.8": round(float(np.mean(overlaps)), 4),
        "shared_noise_runs_1_to_8_at_0.8": run_shares(torch.cat(matches)),
    }


@torch.no_grad()
def greedy_answer(model: Llama, prompt: list[int], stops: set[int], longest: int) -> list[int]:
    """Continue a prompt with the likeliest tokens."""
    logits, cache = model.step(torch.tensor([prompt]), [None] * model.shape.layers)
    answer: list[int] = []
    while len(answer) < longest:
        token = int(logits[0, -1].argmax())
        answer.append(token)
        if token in stops:
            break
        logits, cache = model.step(torch.tensor([[token]]), cache)
    return answer


def repeated_share(answer: list[int], width: int = 8) -> float:
    """The share of an answer's 8-grams that occurred before in it."""
    grams = [tuple(answer[i : i + width]) for i in range(len(answer) - width + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@torch.no_grad()
def own_agreement(pair: dict[str, Llama], prompt: list[int], answer: list[int]) -> list[bool]:
    """Where the draft's greedy token is the target's, along the target's own greedy answer."""
    logits = pair["draft"](torch.tensor([prompt + answer]))[0, len(prompt) - 1 : -1]
    return [a == b for a, b in zip(logits.argmax(-1).tolist(), answer, strict=True)]


def run_counts(agree: list[bool], longest: int = 8) -> list[list[bool]]:
    """For each place, whether the next 1 to 8 positions all agree (not beyond the end)."""
    rows = []
    for begin in range(len(agree) - longest + 1):
        rows.append([all(agree[begin : begin + j]) for j in range(1, longest + 1)])
    return rows


def free_running(pair: dict[str, Llama], tokenizer: Tokenizer, questions: list[str]) -> Json:
    """Let the target answer greedily; measure repetition and the draft's acceptance."""
    stops = {token_id(tokenizer, BOS), token_id(tokenizer, END)}
    shares, lengths, ended, examples = [], [], 0, []
    rows: list[list[bool]] = []
    for question in questions:
        text = f"{BOS}{TURN}user\n{question}{END}\n{TURN}assistant\n"
        prompt = tokenizer.encode(text).ids
        answer = greedy_answer(pair["target"], prompt, stops, 200)
        shares.append(repeated_share(answer))
        lengths.append(len(answer))
        ended += answer[-1] in stops
        rows += run_counts(own_agreement(pair, prompt, answer))
        examples.append({"question": question, "answer": tokenizer.decode(answer)})
    runs = np.mean(np.array(rows, dtype=float), axis=0) if rows else np.zeros(8)
    return {
        "answers": len(questions),
        "mean_tokens": round(float(np.mean(lengths)), 1),
        "ended_by_themselves": ended,
        "repeated_8_grams": round(float(np.mean(shares)), 4),
        "answers_over_30_percent_repeated": sum(share > 0.3 for share in shares),
        "greedy_runs_1_to_8": [round(float(share), 4) for share in runs],
        "examples": examples[:3],
    }


def command_line(args: argparse.Namespace) -> str:
    """The command that makes this pair, without folders."""
    return (
        f"python scripts/train_demo_pair.py --target-minutes {args.target_minutes:g} "
        f"--draft-minutes {args.draft_minutes:g} --seed {args.seed}"
    )


def evaluate(args: argparse.Namespace) -> None:
    """Measure both models, and write evaluation.json and README.md."""
    torch.manual_seed(args.seed)
    pair = {name: trained(args.work_dir, name) for name in ("target", "draft")}
    facts = json.loads((args.work_dir / "corpus.json").read_text())
    tokenizer = Tokenizer.from_file(str(args.work_dir / "tokenizer.json"))
    held = Data(args.work_dir, "held")
    questions = facts.pop("questions")
    report: Json = {
        "command": command_line(args),
        "made_with": {"torch": torch.__version__.split("+")[0], "threads": args.threads},
        "corpus": facts,
        "shapes": {n: asdict(m.shape) | {"weights": m.size()} for n, m in pair.items()},
        "curves": {
            name: json.loads((args.work_dir / f"{name}_curve.json").read_text()) for name in pair
        },
        "held_out_text": {kind: teacher_forced(pair, held, kind) for kind in ("raw", "chat")},
        "own_answers": {
            side: free_running(pair, tokenizer, questions[side]) for side in ("train", "held")
        },
        "sha256": (args.out_dir / "SHA256SUMS").read_text().splitlines(),
    }
    (args.out_dir / "evaluation.json").write_text(json.dumps(report, indent=2) + "\n")
    (args.out_dir / "README.md").write_text(readme(report))
    print(json.dumps({k: report[k] for k in ("held_out_text", "own_answers")}, indent=2))


def table(head: list[str], rows: list[list[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def shape_table(shapes: Json) -> str:
    """The architecture of both models."""
    head = ["", "weights", "width", "heads", "feed-forward", "layers"]
    keys = ("weights", "width", "heads", "hidden", "layers")
    return table(head, [[name, *(f"{s[key]:,}" for key in keys)] for name, s in shapes.items()])


def curve_table(curve: list[Json]) -> str:
    """A loss curve, at most about ten of its points."""
    stride = max(1, len(curve) // 10)
    points = curve[stride - 1 :: stride]
    points = points if points and points[-1] == curve[-1] else [*points, curve[-1]]
    rows = [
        [f"{p['minutes']:.1f}", f"{p['tokens']:,}", f"{p['train_loss']:.3f}",
         f"{p['held_out_loss']:.3f}"] for p in points
    ]  # fmt: skip
    return table(["minutes", "tokens", "training loss", "held-out loss"], rows)


def acceptance_table(report: Json) -> str:
    """Runs of agreement, at temperature 0 unless said otherwise."""
    text, own = report["held_out_text"], report["own_answers"]
    greedy, sampled = "greedy_runs_1_to_8", "shared_noise_runs_1_to_8_at_0.8"
    rows = {
        "held-out source": text["raw"][greedy],
        "held-out chat": text["chat"][greedy],
        "held-out source, temperature 0.8": text["raw"][sampled],
        "held-out chat, temperature 0.8": text["chat"][sampled],
        "the target's answers, seen packages": own["train"][greedy],
        "the target's answers, held-out packages": own["held"][greedy],
    }
    head = ["prefix", *(str(n) for n in range(1, 9))]
    return table(head, [[name, *(f"{x:.0%}" for x in runs)] for name, runs in rows.items()])


def sampling_table(text: Json) -> str:
    """Losses, and the overlap at temperature 0.8, on held-out text."""
    rows = [
        [
            name,
            *(f"{text[kind]['held_out_loss'][which]:.3f}" for which in ("target", "draft")),
            f"{text[kind]['overlap_at_0.8']:.1%}",
        ]
        for name, kind in (("source", "raw"), ("chat", "chat"))
    ]
    head = ["held-out text", "target loss", "draft loss", "overlap at 0.8"]
    return table(head, rows)


def repetition_table(own: Json) -> str:
    """How much the target repeats itself."""
    rows = [
        [
            name,
            str(own[side]["answers"]),
            f"{own[side]['mean_tokens']:.0f}",
            str(own[side]["ended_by_themselves"]),
            f"{own[side]['repeated_8_grams']:.1%}",
            str(own[side]["answers_over_30_percent_repeated"]),
        ]
        for name, side in (("seen", "train"), ("held-out", "held"))
    ]
    head = ["packages", "answers", "mean tokens", "ended", "repeated 8-grams", "over 30 %"]
    return table(head, rows)


README = """# The demo pair

Two tiny Llama models that share one tokenizer of {vocabulary:,} tokens. They exist so that
`localspec` can be tried, and tested, without a download. `scripts/train_demo_pair.py` made them
and wrote this page.

They are toys. The target has learnt from the source of the Python {python} standard library, its
tests and the language reference, and from nothing else; both together were trained for {hours:.1f}
hours on a small computer. It has picked up the look of Python code and of its documentation. Its
answers are often wrong or meaningless; do not rely on them. How much faster this pair runs also
says little about a pair of real models.

## The models

{shapes}

Heads are 64 wide, the context is {context:,} tokens, the embeddings are tied, matrices are stored
as F16 and norms as F32. The draft was distilled: it learnt the target's distribution over all
tokens (nine tenths of its loss) and the text itself (one tenth).

## The text

{train_files:,} files and {train_chats:,} chats made from docstrings, code and reference by fixed
rules, {train_tokens:,} tokens in all. Held out, never trained on as source, tests or chat:
{held_out}.
Held-out text is still text of the same library, in the same style, and other packages use and
mention the held-out ones; so these figures do not tell about other text.

## Loss

Nats per token. The draft's training loss is nine tenths divergence from the target, so it is not
comparable with the other columns. The held-out loss is plain and over fixed rows.

Target:

{target_curve}

Draft:

{draft_curve}

In the end the target's loss is {seen_loss:.2f} on the text it learns from and {held_loss:.2f} on
text it has not seen. The farther these are apart, the more it has learnt by heart; where it is
confident for no good reason a draft cannot follow, which costs agreement on held-out text.

## How often the draft is right

The share of places where the draft's token is the target's for 1, 2, ... 8 tokens in a row: at
temperature 0 the likeliest one, at 0.8 the one that each draws with the same noise. On held-out
text both see the true text. On the target's own greedy answers this is what speculative decoding
meets; places less than 8 tokens before an answer's end are left out. Answers that loop are among
these, and are easy to draft; see below how many they are.

{acceptance}

The losses again, and the overlap of the two distributions at temperature 0.8: the highest share of
single drafted tokens that a method can accept and keep the target's distribution.

{sampling}

## How much the target repeats itself

Greedy answers of at most 200 tokens to questions about seen and held-out packages: how many ended
by themselves, the mean share of 8-grams that had occurred before in the answer, and the number of
answers where that share is over 30 %.

{repetition}

## Making it again

    {command}

With torch {torch} and {threads} threads. The schedule follows the clock, so another run gives
similar, not identical, weights. `evaluation.json` holds all figures.

    {sums}

## Licence

The text is the source of CPython and its reference, under the Python Software Foundation licence.
The weights were trained on it and on nothing else, and may repeat parts of it word for word; such
parts stay under that licence.
"""


def readme(report: Json) -> str:
    """Write the page about the pair from the evaluation."""
    corpus = report["corpus"]
    return README.format(
        vocabulary=VOCABULARY,
        hours=sum(curve[-1]["minutes"] for curve in report["curves"].values()) / 60,
        context=CONTEXT,
        python=corpus["python"],
        shapes=shape_table(report["shapes"]),
        train_files=corpus["train_raw"]["documents"],
        train_chats=corpus["train_chat"]["documents"],
        train_tokens=corpus["train_raw"]["tokens"] + corpus["train_chat"]["tokens"],
        held_out=", ".join(f"`{name}`" for name in corpus["held_out"]),
        seen_loss=report["curves"]["target"][-1]["train_loss"],
        held_loss=report["curves"]["target"][-1]["held_out_loss"],
        target_curve=curve_table(report["curves"]["target"]),
        draft_curve=curve_table(report["curves"]["draft"]),
        acceptance=acceptance_table(report),
        sampling=sampling_table(report["held_out_text"]),
        repetition=repetition_table(report["own_answers"]),
        command=report["command"],
        torch=report["made_with"]["torch"],
        threads=report["made_with"]["threads"],
        sums="\n    ".join(report["sha256"]),
    )


# ---------------------------------------------------------------------------------- command line


def default_work_dir() -> Path:
    """The folder for the corpus and the checkpoints."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "localspec" / "demo-pair"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("stages", nargs="*", metavar="STAGE", help=f"any of: {', '.join(STAGES)} (default: all)")
    add("--work-dir", "--data-dir", type=Path, default=default_work_dir(), metavar="FOLDER",
        help="corpus, checkpoints and loss curves (default: a cache folder)")  # fmt: skip
    add("--out-dir", type=Path, default=Path("models/demo"), metavar="FOLDER",
        help="where the GGUF files and the report go (default: %(default)s)")  # fmt: skip
    add("--target-minutes", type=float, default=65.0, metavar="MINUTES",
        help="time to train the target (default: %(default)g)")  # fmt: skip
    add("--draft-minutes", type=float, default=20.0, metavar="MINUTES",
        help="time to train the draft (default: %(default)g)")  # fmt: skip
    add("--seed", type=int, default=1, help="for texts, weights and batches (default: 1)")
    add("--threads", type=int, default=2, help="processor threads (default: 2)")
    add("--batch-tokens", type=int, default=4096, metavar="N",
        help="tokens in one update, a multiple of 2048 (default: %(default)s)")  # fmt: skip
    args = parser.parse_args()
    if unknown := set(args.stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    return args


def main() -> None:
    """Run the stages asked for, in their order."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    work = (build_corpus, train_target, train_draft, export_pair, evaluate)
    for stage, run in zip(STAGES, work, strict=True):
        if not args.stages or stage in args.stages:
            run(args)


if __name__ == "__main__":
    main()

"""Measures passes of a pair on a GPU: by width, with changes of width, and what a token waits for.

    python benchmarks/gpu/passes.py TARGET.gguf DRAFT.gguf --output FILE.jsonl

Milliseconds, medians of --repeats passes behind --past tokens: of each width by itself; of each
width in turn with one token, less what both take by themselves (the cost of two changes of width);
of a step of the draft, and of the two tokens that it reads after full acceptance, in one pass and
singly. Then a plain token in its parts: the call of llama_decode, which launches the pass, the wait
for its end and its logits, the choice of a token, and what else our loop takes. With
LLAMA_KEPT_GRAPHS=0 a patched llama.cpp keeps one graph, as others do; the line says which.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import GREEDY, Parser

from localspec.core.compute import COMPUTE
from localspec.core.options.load_options import LoadOptions
from localspec.llama import llama_library
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.speculative.control.controllers import NoDraft
from localspec.speculative.loop import generate_rounds, prefill
from localspec.speculative.sampling.sampler import Sampler

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 24, 32)


class Passes:
    """Timed passes of a model behind a text, which they leave as it is."""

    def __init__(self, path: Path, past: int, repeats: int) -> None:
        self.model = LlamaModel(read_header(path), LoadOptions(path, ctx_size=past + 512))
        self._past, self._repeats = past, repeats
        self.model.decode(self.tokens(past), 0)

    def tokens(self, count: int, first: int = 0) -> list[int]:
        """Tokens of a text that means nothing."""
        return [(7919 * (first + i) + 1) % self.model.n_vocab for i in range(count)]

    def _seconds(self, parts: Sequence[int]) -> float:
        """Passes of so many tokens each, one behind the other."""
        began, done = time.perf_counter(), 0
        for width in parts:
            self.model.decode(self.tokens(width, self._past + done), width)
            done += width
        spent = time.perf_counter() - began
        self.model.truncate(self._past)
        return spent

    def alone(self, *parts: int) -> float:
        """Milliseconds where these passes are made again and again."""
        for _ in range(3):  # the first ones of a shape set things up
            self._seconds(parts)
        return 1e3 * statistics.median(self._seconds(parts) for _ in range(self._repeats))

    def in_turn(self, width: int) -> float:
        """Milliseconds of a pass of this width and of one token, in turn."""
        for _ in range(3):
            self._seconds([1, width])
        return self.alone(1, width)

    def two_unread(self) -> float:
        """Milliseconds of two tokens read with one row of logits, and of a step behind them."""

        def once() -> float:
            began = time.perf_counter()
            self.model.decode(self.tokens(2, self._past), 1)
            self.model.decode(self.tokens(1, self._past + 2), 1)
            spent = time.perf_counter() - began
            self.model.truncate(self._past)
            return spent

        return 1e3 * statistics.median(once() for _ in range(self._repeats))


def token_parts(passes: Passes, tokens: int) -> dict[str, float]:
    """Milliseconds of a plain token by what they are spent on, medians."""
    model, llama = passes.model, llama_library.library()
    spent: dict[str, list[float]] = {"decode": [], "synchronize": [], "sample": []}
    decode, synchronize = llama.llama_decode, llama.llama_synchronize

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            found = function(*arguments)
            spent[name].append(time.perf_counter() - began)
            return found

        return call

    def waiting(*arguments: Any) -> Any:
        found = timed("decode", decode)(*arguments)
        timed("synchronize", synchronize)(arguments[0])
        return found

    sampler = Sampler(GREEDY)
    sampler.sample = timed("sample", sampler.sample)  # type: ignore[method-assign]
    prompt = passes.tokens(len(model.tokens) + 1)
    prefill(model, prompt, time.perf_counter)
    llama.llama_decode = waiting
    try:
        rounds = generate_rounds(
            model,
            NoDraft(),
            sampler,
            prompt,
            max_tokens=tokens,
            is_stop=lambda token: False,
            clock=time.perf_counter,
        )
        whole, began = list[float](), time.perf_counter()
        for _ in rounds:
            ended = time.perf_counter()
            whole.append(ended - began)
            began = ended
    finally:
        llama.llama_decode = decode
    found = {name: 1e3 * statistics.median(each[3:]) for name, each in spent.items()}
    found["token"] = 1e3 * statistics.median(whole[3:])
    found["else"] = found["token"] - sum(found[name] for name in spent)
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Everything, of both models."""
    target = Passes(args.target, args.past, args.repeats)
    alone = {width: target.alone(width) for width in args.widths}
    changes = {
        width: target.in_turn(width) - alone[width] - alone[1] for width in args.widths if width > 1
    }
    found: dict[str, Any] = {
        "target": args.target.stem,
        "kept_graphs": llama_library.build().kept_graphs,
        "devices": [each.description for each in llama_library.devices()],
        "width": alone,
        "two changes": changes,
        "token": token_parts(target, 24),
    }
    target.model.close()
    draft = Passes(args.draft, args.past, args.repeats)
    found |= {
        "draft step": draft.alone(1),
        "draft, 2 unread and a step": draft.two_unread(),
        "draft, three steps": draft.alone(1, 1, 1),
    }
    draft.model.close()
    return found


def main() -> None:
    """Append one line of JSON to the file, and print it."""
    parser = Parser(__doc__ or "")
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.integers(past=300, repeats=12)
    args = parser.parse_args()
    with COMPUTE.adopted():  # else each pass changes threads
        line = json.dumps(measure(args))
    with args.output.open("a") as file:
        file.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()

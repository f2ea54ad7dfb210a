"""Measures what grammars cost a token, and what their forced tokens gain.

    python benchmarks/grammar.py --prompts benchmarks/python.jsonl [--quantization F16]
    PYTHONPATH=. python benchmarks/grammar.py --words 152000
    python benchmarks/grammar.py --forced [--quantization F16]

Picks with and without the grammar take turns over the same rows of logits. Drafted answers are
generated with a draft that obeys and with one that does not; with ``--exact`` each text is the
plain one, else rounding may tell some apart. It measures the bundled pair, or that pair padded.
With ``--words`` a random model with so many made-up words measures the picks alone. With
``--forced`` the target alone answers by schemas that agents use: free, constrained, constrained
with forced tokens drafted, taking turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
from common import CTX_SIZE, GREEDY, Parser, conditions, empty_caches, load, padded_pair, span

from localspec.bench import demo
from localspec.bench.prompts import read_prompts
from localspec.chat.answer import Answer, collect
from localspec.chat.stats import GenerationStats
from localspec.core import paths
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine import generate
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.grammar.source import read_grammar, read_schema

WARM = SamplingParams(temperature=0.8)
_TEXT, _SHORT = {"type": "string", "maxLength": 24}, {"type": "string", "maxLength": 8}
_COMPACT = {"x-guidance": {"whitespace_pattern": None, "whitespace_flexible": False}}
GRAMMARS = {
    "any JSON": read_schema('{"type": "object"}').grammar,
    "schema": read_schema(
        '{"type": "object", "required": ["name", "arguments", "text"], "properties": {'
        '"name": {"type": "string", "maxLength": 30}, "text": {"type": "string"}, '
        '"arguments": {"type": "array", "items": {"type": "string"}, "maxItems": 5}}}'
    ).grammar,
    "code block": read_grammar('root ::= "```python\\n" [^`]+ "```\\n"?'),
}


def _object(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": [*properties]}


# As tools and extractions have them: from mostly text to mostly keys and constants.
SCHEMAS: dict[str, dict[str, object]] = {
    "one text": _object(text={"type": "string", "maxLength": 120}),
    "weather tool": _object(
        name={"const": "get_current_weather"},
        arguments=_object(location=_SHORT, temperature_unit={"enum": ["celsius", "fahrenheit"]}),
    ),
    "calendar entry": _object(
        event_title=_SHORT,
        start_date={"type": "string", "format": "date"},
        all_day={"type": "boolean"},
        visibility={"enum": ["public", "private"]},
    ),
    "invoice": _object(
        invoice_number={"type": "integer", "minimum": 1, "maximum": 9999},
        billing_address=_object(street_and_number=_SHORT, postal_code=_SHORT, country=_SHORT),
        payment_is_due={"type": "boolean"},
        currency={"const": "EUR"},
    ),
}


@dataclass
class Picks:
    """Medians of the time a pick takes, in microseconds, and the share of first picks refused."""

    plain: list[float]
    obeying: list[float]
    refused: int = 0

    def line(self) -> str:
        plain, obeying = statistics.median(self.plain), statistics.median(self.obeying)
        mean = statistics.mean(self.obeying) - statistics.mean(self.plain)
        share = self.refused / len(self.plain)
        return f"{plain:8.0f} {obeying:8.0f} {mean:10.0f} {max(self.obeying):9.0f} {share:8.0%}"


def time_picks(
    engine: Engine, prompt: list[int], grammar: str, params: SamplingParams, tokens: int
) -> Picks:
    """Generate by the grammar, picking at each token without it too."""
    rules = engine.token_rules(params)
    plain_sampler = generate.make_sampler(params, rules)
    sampler = generate.make_sampler(params, rules, engine.constraint(grammar, len(prompt)))
    picks, context = Picks([], []), list(prompt)
    empty_caches(engine.target)
    unread = context
    while len(picks.plain) < tokens and len(context) < engine.target.n_ctx:
        row = engine.target.decode(unread, 1)[0]
        began = time.perf_counter()
        first = plain_sampler.sample(row, len(context), context)
        between = time.perf_counter()
        token = sampler.sample(row, len(context), context)
        picks.obeying.append(1e6 * (time.perf_counter() - between))
        picks.plain.append(1e6 * (between - began))
        picks.refused += first != token
        context.append(token)
        unread = [token]
        if engine.is_stop(token):
            break
    return picks


def print_picks(engine: Engine, prompts: Sequence[list[int]], tokens: int) -> None:
    """A table of what picks cost, in microseconds."""
    print("grammar     temp    plain  grammar  mean more      most  refused   (µs a token)")
    for name, grammar in GRAMMARS.items():
        for params in (GREEDY, WARM):
            total = Picks([], [])
            for seed, prompt in enumerate(prompts):
                picks = time_picks(engine, prompt, grammar, replace(params, seed=seed), tokens)
                total.plain += picks.plain
                total.obeying += picks.obeying
                total.refused += picks.refused
            print(f"{name:11} {params.temperature:4g} {total.line()}", flush=True)


def answers(
    engine: Engine, prompts: Sequence[list[int]], grammar: str, params: SamplingParams, length: int
) -> Iterator[Answer]:
    """An answer to each prompt, from empty caches."""
    for seed, prompt in enumerate(prompts):
        empty_caches(engine.target, engine.draft)
        seeded = replace(params, seed=seed)
        stream = stream_generate(
            engine, prompt, GenerateOptions(seeded, length, max_tokens=128, grammar=grammar)
        )
        yield collect(stream)


def print_acceptance(engine: Engine, prompts: Sequence[list[int]], length: int) -> None:
    """A table of acceptance and speed, with a draft that obeys and one that does not."""
    real = generate.model_drafter
    wild = mock.patch.object(
        generate,
        "model_drafter",
        lambda engine, params, constraint=None, **more: real(engine, params, **more),
    )
    print(f"\ngrammar     temp  draft {length}    accepted  tokens/round    tok/s  text of plain")
    for name, grammar in GRAMMARS.items():
        for params in (GREEDY, WARM):
            plain: list[list[int]] = []
            for label in ("off", "obeys", "does not"):
                drafted = 0 if label == "off" else length
                with wild if label == "does not" else nullcontext():
                    found = list(answers(engine, prompts, grammar, params, drafted))
                texts = [answer.tokens for answer in found]
                plain = plain or texts
                stats = GenerationStats()
                for answer in found:
                    stats.merge(answer.stats)
                same = sum(one == other for one, other in zip(plain, texts, strict=True))
                print(
                    f"{name:11} {params.temperature:4g}  {label:8}  "
                    f"{stats.acceptance_rate or 0:9.0%} {stats.mean_accepted_length:13.2f} "
                    f"{stats.generation_tps:8.1f}  {same} of {len(texts)}",
                    flush=True,
                )


def print_forced(engine: Engine, prompts: Sequence[list[int]]) -> None:
    """Tokens per second by schema, spaced and compact, and what forced tokens gain."""
    print(f"{'schema':20}spacing      free  constrained   forced  gain (span)  forced tokens")
    for name, schema in SCHEMAS.items():
        for spacing, options in (("free", {}), ("compact", _COMPACT)):
            grammar = read_schema(json.dumps({**schema, **options})).grammar
            speeds: list[list[float]] = [[], [], []]
            drafted = tokens = 0
            for seed, prompt in enumerate(prompts):
                params = replace(GREEDY, seed=seed)
                variants: list[tuple[DraftTokens, str | None]]
                variants = [(0, None), (0, grammar), ("auto", grammar)]
                for (length, text), found in zip(variants, speeds, strict=True):
                    empty_caches(engine.target)
                    stream = stream_generate(
                        engine,
                        prompt,
                        GenerateOptions(
                            params, length, prompt_lookup=False, max_tokens=96, grammar=text
                        ),
                    )
                    answer = collect(stream)
                    found.append(answer.stats.generation_tps or 0.0)
                tokens += answer.stats.tokens
                drafted += answer.stats.accepted
            free, plain, forced = map(statistics.harmonic_mean, speeds)
            gains = [new / old for new, old in zip(speeds[2], speeds[1], strict=True)]
            print(
                f"{name:20}{spacing:8} {free:8.1f} {plain:12.1f} {forced:8.1f} "
                f"{forced / plain:6.2f} ({span(gains, 2)}) {drafted / tokens:10.0%}",
                flush=True,
            )


def wordy_model(folder: Path, words: int) -> Path:
    """A random model over the tiny vocabulary and made-up words of two to nine letters."""
    from tests.support.files.tiny_models import vocabulary, write_tiny_model

    rng = np.random.default_rng(0)
    letters = np.array([*"etaoinshrdlucmfwypvbgkjqxz"])
    made: set[str] = set()
    while len(made) < words:
        chosen = np.minimum(25, rng.exponential(7, rng.integers(2, 10)).astype(int))
        made.add("Ġ" * int(rng.integers(2)) + "".join(letters[chosen]))
    extra = sorted(made - set(vocabulary()))
    return write_tiny_model(folder / "words.gguf", seed=1, extra_tokens=extra)


def main() -> None:
    """Print both tables."""
    parser = Parser(__doc__)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--quantization", choices=demo.QUANTIZATIONS)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--forced", action="store_true")
    parser.integers(draft=4, tokens=96, words=None, threads=1)
    args: argparse.Namespace = parser.parse_args()
    print(conditions(args.threads))
    if args.words is not None:
        with tempfile.TemporaryDirectory() as folder:
            model = wordy_model(Path(folder), args.words)
            with load([model], args.threads) as engine:
                print(f"{engine.target.n_vocab} tokens")
                print_picks(engine, [engine.encode_text(f"{i} ab") for i in range(4)], args.tokens)
        return
    files = padded_pair(args.quantization) if args.quantization else paths.demo_pair()
    options = [
        LoadOptions(path, ctx_size=CTX_SIZE, threads=args.threads, exact=args.exact)
        for path in files
    ]
    if args.forced:
        options = options[:1]
    with Engine.load(*options) as engine:
        prompts = [engine.encode_chat(p.messages) for p in read_prompts(args.prompts)]
        if args.forced:
            print_forced(engine, prompts)
            return
        print_picks(engine, prompts, args.tokens)
        print_acceptance(engine, prompts, args.draft)


if __name__ == "__main__":
    main()

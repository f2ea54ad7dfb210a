"""The answers of `benchmarks/real.py`: kept in a file, compared by kind of text, shown."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PLAIN = "plain"
PEERS = LLAMA, IK = "llama-server", "ik_llama.cpp"


@dataclass(frozen=True, slots=True)
class Record:
    """One answer of a variant to the prompt of this number; times in seconds.

    ``margin`` and ``proven`` are those of a text that is not plain's: the lead in logits of plain's
    pick where they part, and whether the difference is proven to be rounding. Both are None where
    that was not looked at.
    """

    variant: str
    kind: str
    prompt: int
    tokens: int
    seconds: float
    prompt_seconds: float
    drafted: int
    accepted: int
    text: str
    margin: float | None = None
    proven: bool | None = None


@dataclass
class Records:
    """The answers so far, in a file too if there is one; those of other settings are left out."""

    path: Path | None
    settings: list[object]
    answers: dict[tuple[str, int], Record] = field(default_factory=dict)

    def read(self) -> None:
        """Take up those of the file; of two to the same prompt, the later one."""
        if self.path is not None and self.path.exists():
            for line in self.path.read_text().splitlines():
                settings, record = json.loads(line)
                if settings == self.settings:
                    self._keep(Record(**record))

    def add(self, record: Record) -> None:
        """Keep an answer."""
        self._keep(record)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([self.settings, asdict(record)]) + "\n")

    def _keep(self, record: Record) -> None:
        self.answers[record.variant, record.prompt] = record


def program(variant: str) -> str:
    """What decodes in a variant."""
    return next((name for name in PEERS if variant.startswith(name)), "localspec")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Tokens per second over plain decoding's: of all answers, the least and the largest of one."""

    all: float
    least: float
    most: float


@dataclass
class Figures:
    """Ratios by variant and kind, from answers to prompts that every variant has answered."""

    answers: dict[tuple[str, int], Record]

    def __post_init__(self) -> None:
        self.variants = list(dict.fromkeys(variant for variant, _ in self.answers))
        numbers = dict.fromkeys(number for _, number in self.answers)
        self._by_kind: dict[str, list[int]] = {}
        for number in numbers:
            if all((variant, number) in self.answers for variant in self.variants):
                kind = self.answers[PLAIN, number].kind
                self._by_kind.setdefault(kind, []).append(number)
        self.kinds = list(self._by_kind)

    def pace(self, variant: str, prompts: Sequence[int]) -> float:
        """Seconds per token of these answers; the first token belongs to the prompt."""
        found = [self.answers[variant, number] for number in prompts]
        seconds = sum(each.seconds - self._prompt_seconds(each) for each in found)
        return seconds / sum(max(1, each.tokens - 1) for each in found)

    def _prompt_seconds(self, record: Record) -> float:
        """The server's time for the prompt, without the draft's reading of it."""
        plain = self.answers.get((f"{program(record.variant)} plain", record.prompt))
        seconds = record.prompt_seconds
        return seconds if plain is None else min(seconds, plain.prompt_seconds)

    def prompts(self, kind: str) -> list[int]:
        """The numbers of its prompts."""
        return self._by_kind[kind]

    def ratio(self, variant: str, kind: str) -> Ratio:
        """That of one kind."""
        prompts = self._by_kind[kind]
        single = [self.pace(PLAIN, [each]) / self.pace(variant, [each]) for each in prompts]
        whole = self.pace(PLAIN, prompts) / self.pace(variant, prompts)
        return Ratio(whole, min(single), max(single))

    def ratios(self) -> dict[str, dict[str, Ratio]]:
        """All, by variant and kind."""
        return {
            name: {kind: self.ratio(name, kind) for kind in self.kinds} for name in self.variants
        }

    def over_best(self, prefix: str) -> dict[str, float]:
        """The speed of auto over that of the best variant whose name begins so, by kind."""
        others = [name for name in self.variants if name.startswith(prefix)]
        if "auto" not in self.variants or not others:
            return {}
        return {
            kind: self.ratio("auto", kind).all / max(self.ratio(name, kind).all for name in others)
            for kind in self.kinds
        }

    def texts(self, variant: str) -> tuple[int, int, int | None]:
        """Texts that differ from plain ones of the same program, of how many, and of those the
        ones that are not proven to be rounding (None: not looked at)."""
        plain = PLAIN if program(variant) == "localspec" else f"{program(variant)} plain"
        numbers = [number for kind in self.kinds for number in self._by_kind[kind]]
        ours = [self.answers[variant, number] for number in numbers]
        theirs = [self.answers[plain, number] for number in numbers]
        found = [a for a, b in zip(ours, theirs, strict=True) if a.text != b.text]
        if any(each.proven is None for each in found):
            return len(found), len(numbers), None
        return len(found), len(numbers), sum(not each.proven for each in found)


def show(figures: Figures) -> None:
    """Print a table of ratios, what auto reaches beside others, and whose texts differ."""
    kinds = figures.kinds
    print("|variant|" + "|".join(kinds) + "|mean|\n" + "|---" * (len(kinds) + 2) + "|")
    speeds = [1 / figures.pace(PLAIN, figures.prompts(kind)) for kind in kinds]
    print("|plain, tok/s|" + "|".join(f"{each:.2f}" for each in speeds) + "||")
    for variant, ratios in figures.ratios().items():
        cells = [
            f"{each.all:.2f} ({each.least:.2f} to {each.most:.2f})" for each in ratios.values()
        ]
        mean = statistics.geometric_mean(each.all for each in ratios.values())
        print(f"|{variant}|" + "|".join(cells) + f"|{mean:.2f}|")
    print()
    for name, prefix in (("fixed length", "draft "), *((f"of {name}", name) for name in PEERS)):
        over = figures.over_best(prefix)
        if over:
            by_kind = ", ".join(f"{kind} {each:.2f}" for kind, each in over.items())
            mean = statistics.geometric_mean(over.values())
            print(f"auto over the best {name}: {by_kind}; mean {mean:.2f}")
    for variant in figures.variants:
        differ, count, unproven = figures.texts(variant)
        if variant not in (PLAIN, *(f"{name} plain" for name in PEERS)):
            proof = "" if unproven is None else f", {unproven} not proven to be rounding"
            print(f"{variant}: {differ} of {count} texts differ from plain{proof}")

"""Options that name the models of a pair and bound the drafting; how a draft is read from text."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localspec.core.errors import UsageError
from localspec.core.options.load_options import BRANCHES, MAX_DRAFT_TOKENS, DraftTokens
from localspec.core.options.option import DRAFTING, option
from localspec.core.options.sampling_params import SamplingParams, require_fixed_length

_drafting = partial(option, panel=DRAFTING)
_everyday = partial(_drafting, everyday=True)
_lookup = partial(option, panel="Lookup")
_ODD_NUMBER = re.compile(r"-[\d.,]+|\d*\.\d+")  # meant as a length, and never a file


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The draft model, as it was named, and how many tokens it proposes in a round (0: none)."""

    model: str | None = None
    lengths: tuple[DraftTokens, ...] = ()

    def over(self, model: str | None, kept: object) -> "DraftOptions":
        """This model of a pair, with its stored length if none was asked for."""
        lengths = () if kept is None else parse_draft_tokens(str(kept)) or ()
        return DraftOptions(model, self.lengths or lengths)

    def lengths_for(
        self, params: SamplingParams, usual: tuple[DraftTokens, ...]
    ) -> tuple[DraftTokens, ...]:
        """The lengths asked for, or the usual ones; UsageError if ``params`` forbid one."""
        lengths = self.lengths or usual
        for length in lengths:
            require_fixed_length(length, params)
        return lengths

    def one_length(self, default: DraftTokens) -> DraftTokens:
        """The single length asked for; raises UsageError if a list was given."""
        if len(self.lengths) > 1:
            raise UsageError(
                "This command takes one draft length, not a list.", "Give one number, auto or off."
            )
        return self.lengths[0] if self.lengths else default


@dataclass(frozen=True, slots=True)
class PairOptions:
    """The models of a pair, and the draft length, as they were named."""

    target: str | None = option(
        None,
        "--target -m --model",
        "Target model: a GGUF file, org/repo:Q4_K_M on the Hub, or the name of a pair.",
        metavar="MODEL",
        everyday=True,
    )
    draft: tuple[str, ...] = _everyday(
        (),
        "--draft",
        "Draft model: a file, one on the Hub, mtp (heads of the target), find (best on this disk), "
        "self (see draft make). Or draft length: N, auto, off.",
        metavar="MODEL|N|off",
    )
    draft_model: str | None = _everyday(
        None,
        "--draft-model -md",
        "Draft model, or a sidecar (EAGLE-3, DFlash, DSpark, MTP).",
        metavar="MODEL",
    )
    draft_tokens: str | None = _everyday(
        None,
        "--draft-tokens",
        "Draft length. Default: auto, as many as pay off.",
        metavar="N|auto|off",
    )
    lenient: bool = _drafting(
        False,
        "--lenient",
        "Accept pairs that llama.cpp refuses for harmless reasons: control or unused tokens, BOS "
        "and EOS ids, vocabulary size.",
        stored=True,
    )

    def draft_options(self) -> DraftOptions:
        """The draft model and length by ``--draft`` and its long forms together."""
        return choose_draft(list(self.draft), self.draft_model, self.draft_tokens)


@dataclass(frozen=True, slots=True)
class ModelOptions(PairOptions):
    """The models, and the sources of drafts."""

    branches: int = _drafting(
        1,
        "--branches",
        "With a fixed draft length, maximum alternatives per position (tree verification).",
        metavar="N",
        bounds=BRANCHES,
        stored=True,
    )
    prompt_lookup: bool = _lookup(
        True,
        "--prompt-lookup",
        "Let auto draft the tokens that followed the same n-gram earlier in the text. Default: on.",
        metavar="on|off",
        words={"on": True, "off": False},
    )
    lookup_cache: Path | None = _lookup(
        None, "--lookup-cache", "Save answers to this file, and draft from the answers saved in it."
    )
    lookup_files: tuple[Path, ...] = _lookup(
        (),
        "--lookup-files",
        "Also draft from these text files or folders, such as a repository; may be repeated.",
    )
    recalibrate: bool = _drafting(
        False, "--recalibrate", "Forget the measured costs of this pair, and measure again."
    )
    yes: bool = _drafting(
        False, "--yes -y", "Do not ask before a large download or a long search for a draft."
    )
    verbose: bool = option(False, "--verbose -v", "Show llama.cpp's log on stderr.")


def parse_draft_tokens(text: str) -> tuple[DraftTokens, ...] | None:
    """Read ``8``, ``auto``, ``off`` or a list such as ``0,2,4``; None when it is none of these."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part in ("auto", "off") or part.isdecimal() for part in parts):
        return None
    lengths: list[DraftTokens] = []
    for part in parts:
        length: DraftTokens = "auto" if part == "auto" else 0 if part == "off" else int(part[:9])
        if length != "auto" and (length > MAX_DRAFT_TOKENS or len(part) > 9):
            raise UsageError(
                f"A draft of {part[:99]} tokens exceeds the maximum, {MAX_DRAFT_TOKENS}.",
                "Draft lengths that pay are between 1 and 16; try --draft 4.",
            )
        lengths.append(length)
    return tuple(lengths)


def choose_draft(either: list[str], model: str | None, lengths: str | None) -> DraftOptions:
    """Sort the values of ``--draft``, lengths or a model, together with the explicit flags."""
    models = [] if model is None else [model]
    texts = [] if lengths is None else [lengths]
    for value in either:
        if _ODD_NUMBER.fullmatch(value):
            raise UsageError(
                f"{value} is no draft length.",
                f"Expected a number from 0 to {MAX_DRAFT_TOKENS}, auto, off, or a GGUF file.",
            )
        (texts.append(value) if parse_draft_tokens(value) else models.append(value))
    if len(models) > 1:
        raise UsageError(
            f"Two draft models were given: {models[0]} and {models[1]}.", "Name one draft model."
        )
    if len(texts) > 1:
        raise UsageError(
            f"Two draft lengths were given: {texts[0]} and {texts[1]}.", "Give one draft length."
        )
    parsed = parse_draft_tokens(texts[0]) if texts else ()
    if parsed is None:
        raise UsageError(
            f"--draft-tokens {texts[0]!r} is no draft length.",
            f"Expected a number from 0 to {MAX_DRAFT_TOKENS}, auto or off.",
        )
    return DraftOptions(models[0] if models else None, parsed)

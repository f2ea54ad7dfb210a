"""A loaded pair: tokenizer, template and two token models on llama.cpp.

This room owns the joining of target and draft: they are checked from their headers before any
weight is read, because some bad files trip assertions in llama.cpp that end the process, and
because what does not fit should be said before it is tried. One model alone is `model`'s; drafting
and text streams are unknown here.
"""

import copy
import functools
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from localspec.core import machine
from localspec.core.config import LoadOptions
from localspec.core.errors import FileProblem, IncompatiblePair
from localspec.engine import llama_library, profile_store
from localspec.engine.chat_template import Message, render
from localspec.engine.memory_probe import announcement, free_memory, plan_here
from localspec.engine.model import LlamaModel
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import Finding, check_model, check_pair
from localspec.speculative.calibration import calibrate, still_holds
from localspec.speculative.knowledge import Knowledge
from localspec.speculative.limits import ceiling
from localspec.speculative.loop import Clock
from localspec.speculative.valuation import LONGEST_AUTO

_CANNOT_FORGET = (
    "{} cannot drop rejected tokens (recurrent or hybrid): running plain, the draft is not used."
)
_LEAST_CEILING = 1.05


class Engine:
    """A target and perhaps its draft, ready to generate.

    ``notes`` are things the user should know before the first token: findings of the pairing
    check, and why a draft that was asked for is not used.
    """

    def __init__(
        self, target: LlamaModel, draft: LlamaModel | None, notes: Sequence[str] = ()
    ) -> None:
        self.target = target
        self.draft = draft
        self._learnt: Knowledge | None = None
        self.notes = [*notes, *_stretched(target)]

    @classmethod
    def load(
        cls,
        target: LoadOptions,
        draft: LoadOptions | None = None,
        *,
        lenient: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> "Engine":
        """Check the files' headers and what fits, then load them.

        ``lenient`` is that of `pairing.check_pair`; ``say`` hears what should be known before the
        weights are read, which can take minutes. Raises FileProblem or NotAGGUF for a bad file,
        IncompatiblePair for a pair that must not run, NotEnoughMemory for what cannot fit,
        EngineError when llama.cpp refuses.
        """
        header = read_header(target.path)
        draft_header = None if draft is None else read_header(draft.path)
        if draft_header is None:
            notes = require_model(header)
        else:
            notes = require_pair(header, draft_header, lenient=lenient)
        if draft_header is not None and (stuck := _stuck(header, draft_header)):
            notes.append(stuck)
            draft = draft_header = None
        free = free_memory(target.device)
        chosen = plan_here(header, target, draft_header, draft, free)
        announced = announcement(chosen, free)
        told = [*chosen.notes, *([announced] if announced else [])]
        if say is None:
            notes += chosen.notes
        else:
            for sentence in told:
                say(sentence)
        notes += missing_gpu()
        target = replace(target, ctx_size=chosen.ctx_size, gpu_layers=chosen.gpu_layers)
        engine = cls(LlamaModel(header, target), None, notes)
        if draft is None or draft_header is None:
            return engine
        draft = replace(draft, ctx_size=chosen.draft_ctx_size, gpu_layers=chosen.draft_gpu_layers)
        try:
            engine._add_draft(draft_header, draft)
        except BaseException:
            engine.close()
            raise
        return engine

    def _add_draft(self, header: ModelHeader, options: LoadOptions) -> None:
        if not self.target.can_roll_back:
            self.notes.append(_CANNOT_FORGET.format(self.target.header.path.name))
            return
        draft = LlamaModel(header, options)
        if not draft.can_roll_back:
            draft.close()
            self.notes.append(_CANNOT_FORGET.format(header.path.name))
            return
        self.draft = draft
        self.notes += _stretched(draft)

    def is_stop(self, token: int) -> bool:
        """True for the target's end-of-generation tokens."""
        return self.target.is_stop(token)

    def piece(self, token: int) -> bytes:
        """The bytes of a token of the target."""
        return self.target.piece(token)

    def encode_text(self, text: str) -> list[int]:
        """Raw text as token ids, with BOS where the model wants one; markup is not obeyed."""
        return self.target.tokenize(text, add_special=True, parse_special=False)

    def encode_chat(
        self, messages: Sequence[Message], *, thinking: bool | None = None
    ) -> list[int]:
        """A conversation as token ids up to the assistant's turn, never with two BOS.

        As in llama.cpp, template markup inside a message is obeyed: do not pass on text of
        strangers where that matters.
        """
        vocab = self.target.header.vocab
        bos = self.target.special_text(vocab.bos_id if vocab else None)
        eos = self.target.special_text(vocab.eos_id if vocab else None)
        text = render(
            self.target.header.chat_template, messages, bos=bos, eos=eos, thinking=thinking
        )
        doubled = bool(bos) and text.startswith(bos)
        return self.target.tokenize(text, add_special=not doubled, parse_special=True)

    def learnt(self, clock: Clock) -> Knowledge:
        """What is known of this pair on this machine; measured first if nothing is.

        Kept between runs; what is damaged is discarded, and costs that no longer hold are measured
        again, each with a note. The caches must be empty.
        """
        if self._learnt is None:
            try:
                self._learnt = profile_store.load(self._profile)
            except ValueError as error:
                self.notes.append(f"The kept profile of this pair is discarded: {error}.")
            if self._learnt and not still_holds(self._learnt, self.target, self.draft, clock):
                self.notes.append("Passes cost something else here than before: measured again.")
                kept = self._learnt.acceptance
                self._learnt = calibrate(self.target, self.draft, clock)
                self._learnt.acceptance = kept
        if self._learnt is None:
            self._learnt = calibrate(self.target, self.draft, clock)
        return self._learnt

    def introduce(self, say: Callable[[str], None]) -> None:
        """Let auto know this pair, measured if it is new here; ``say`` what a user should know."""
        if self._learnt is not None:
            return
        if not self._profile.exists():
            say("New on this machine: measuring for about two seconds what drafting costs.")
        told = len(self.notes)
        self.learnt(time.perf_counter)
        for sentence in [*self.notes[told:], *self._verdict()]:
            say(sentence)

    def forget(self) -> None:
        """Let the pair be measured anew."""
        self._learnt = None
        self._profile.unlink(missing_ok=True)

    def _verdict(self) -> list[str]:
        """One line when no draft could pay on this machine, with the figures."""
        if self._learnt is None or self.draft is None:
            return []
        step = self._learnt.draft.seconds(1, 0)
        verify = [self._learnt.verify.seconds(1 + k, 0) for k in range(LONGEST_AUTO + 1)]
        most, length = ceiling(verify, step)
        if most >= _LEAST_CEILING:
            return []
        return [
            f"Even a draft that is always right would gain no more than {most:.2f}x here (with "
            f"{length} tokens a round): running plain, but for what the text repeats."
        ]

    @functools.cached_property
    def _profile(self) -> Path:
        """Where what is learnt is kept; found before it is written, when a file may be gone."""
        models = [model for model in (self.target, self.draft) if model is not None]
        return profile_store.profile_path(
            [model.header for model in models],
            {
                "cpu": machine.cpu_name(),
                "devices": [device.name for device in llama_library.devices()],
                "models": [_circumstances(model) for model in models],
            },
        )

    @property
    def can_roll_back(self) -> bool:
        """Whether the target's last tokens can be forgotten."""
        return self.target.can_roll_back

    @contextmanager
    def widened(self, width: int) -> Iterator[None]:
        """Let no pass of the target be narrower than ``width`` tokens while the block runs.

        The context must have room for ``width`` more tokens than are generated. Nothing is learnt
        meanwhile: such passes cost more than their tokens.
        """
        before, learnt = self.target.min_width, self._learnt
        self.target.min_width, self._learnt = width, copy.deepcopy(learnt)
        try:
            yield
        finally:
            self.target.min_width, self._learnt = before, learnt

    def close(self) -> None:
        """Keep what was learnt, and free both models."""
        if self._learnt is not None:
            profile_store.save(self._profile, self._learnt)
        if self.draft is not None:
            self.draft.close()
        self.target.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _circumstances(model: LlamaModel) -> dict[str, object]:
    """What costs depend on: not where a file lies, what it is called, how much context there is."""
    left_out = ("file", "name", "ctx_size")
    return {name: value for name, value in model.settings().items() if name not in left_out}


def require_model(header: ModelHeader) -> list[str]:
    """Raise FileProblem when the file must not be loaded by itself; else its warnings."""
    findings = check_model(header)
    for finding in findings:
        if finding.level == "error":
            raise FileProblem(f"{header.path}: {finding.message}", finding.hint)
    return _warnings(findings)


def require_pair(target: ModelHeader, draft: ModelHeader, *, lenient: bool = False) -> list[str]:
    """Raise IncompatiblePair when the draft must not speak for the target; else the warnings."""
    report = check_pair(target, draft, lenient=lenient)
    if not report.compatible:
        first, *others = report.errors
        more = f" And {len(others)} more." if others else ""
        anyway = " No text can be corrupted by that: --lenient runs the pair." * report.harmless
        raise IncompatiblePair(
            f"{draft.path} cannot draft for {target.path}: {first.message}{more}",
            f"{first.hint}{anyway} All findings: "
            + shlex.join(["localspec", "check", str(target.path), str(draft.path)]),
        )
    return _warnings(report.findings)


def _warnings(findings: Sequence[Finding]) -> list[str]:
    return [f"{f.message} {f.hint}" for f in findings if f.level == "warning"]


def _stretched(model: LlamaModel) -> list[str]:
    trained = model.header.context_length
    if trained is None or model.n_ctx <= trained:
        return []
    return [
        f"The context of {model.n_ctx} tokens is longer than the {trained} that "
        f"{model.header.path.name} was trained for: expect nonsense beyond them."
    ]


def _stuck(*headers: ModelHeader) -> str | None:
    """Why a pair runs plain, where an architecture is known not to roll back."""
    for header in headers:
        if not header.can_roll_back:
            return _CANNOT_FORGET.format(header.path.name)
    return None


def missing_gpu() -> list[str]:
    """One line when the machine has an NVIDIA card that this build cannot use."""
    if not machine.has_nvidia_gpu() or llama_library.build().gpu_offload:
        return []
    return [
        "This build of llama.cpp has no GPU support, but the machine has an NVIDIA GPU. Mend it in "
        "localspec's own folder: bash scripts/build_cuda.sh --python " + shlex.quote(sys.executable)
    ]

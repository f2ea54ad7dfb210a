"""From bytes of tokens to text: reasoning, answer and tool calls, up to a stop string."""

import codecs
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from localspec.chat.reasoning import Format, Splitter, overlap
from localspec.chat.tools.finder import CallFinder
from localspec.chat.tools.forms import CallForm
from localspec.chat.tools.tool import Tool, ToolCall, ToolCallDelta, is_json

# Hears of a complete answer with calls: these, its text, and its tokens without the last.
Keep = Callable[["OutputFormat", Sequence[ToolCall], str, Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Format of the tokens after a prompt: how they become text.

    ``piece`` gives the bytes of a token, also of control tokens that are marks of ``form``, in
    whose ``state`` the answer begins; without a form, all text is the answer. ``stop`` are further
    stop strings. Calls of ``tools`` are found by their form ``calls``, one of them at most unless
    ``parallel_calls``; ``grammar`` allows them, or with ``forces_call`` nothing but one. ``keep``
    hears of answers with calls that the model itself ended; ``ids_of`` tokenizes text,
    control tokens included or not. The last ``prefilled`` tokens of the
    prompt begin the answer, None where that begins within a token.
    """

    piece: Callable[[int], bytes]
    form: Format | None = None
    state: str = "start"
    stop: tuple[str, ...] = ()
    calls: CallForm | None = None
    tools: tuple[Tool, ...] = ()
    grammar: str | None = None
    parallel_calls: bool = True
    forces_call: bool = False
    keep: Keep | None = None
    ids_of: Callable[[str, bool], list[int]] | None = None
    prefilled: int | None = 0

    def splitter(self) -> Splitter | None:
        return None if self.form is None else Splitter(self.form, self.state)

    def finder(self) -> CallFinder | None:
        if self.calls is None:
            return None
        return CallFinder(self.calls, self.tools, self.parallel_calls)


class Prompt(list[int]):
    """Token ids, and how the tokens after them become text."""

    def __init__(self, tokens: Iterable[int], output: OutputFormat) -> None:
        super().__init__(tokens)
        self.output = output


class TextStream:
    """Turns the bytes of tokens into text that ends before the first stop string.

    A possible beginning of a stop string, a mark or a character is held back until it is
    decided. Stop strings apply to the answer, not to reasoning (in llama.cpp's server they end
    both) nor to tool calls.
    """

    def __init__(
        self,
        stop: Sequence[str] = (),
        splitter: Splitter | None = None,
        finder: CallFinder | None = None,
    ) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._splitter = splitter
        self._finder = finder
        self._calls: list[ToolCall] = []
        self._deltas: list[ToolCallDelta] = []
        self._stop = [text for text in stop if text]
        self._held = ""
        self._thoughts: list[str] = []  # if calls may be in them
        self._answered = False  # the answer has text or a call
        self.stop_text: str | None = None  # the stop string that ended the answer

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the answer, or the only call that it may have."""
        return self.stop_text is not None or (self._finder is not None and self._finder.done)

    def push(self, data: bytes, final: bool = False, cut: bool = False) -> list[tuple[str, bool]]:
        """Text that can be shown now, each piece with whether it is reasoning.

        ``final`` releases what was held back, and with ``cut``, at a limit of the answer, not the
        beginning of a call. Once ``stopped`` is true, nothing more comes.
        """
        if self.stopped:
            return []
        text = self._decoder.decode(data, final)
        if self._splitter is None:
            answer = self._said(text, final, cut)
            return [(answer, False)] if answer else []
        ready: list[tuple[str, bool]] = []
        for part, reasoning in self._splitter.push(text, final):
            ready.append((part if reasoning else self._said(part), reasoning))
            if self.stopped:
                break
            if reasoning and self._finder is not None:
                self._thoughts.append(part)
        if final:
            ready.append((self._said("", final, cut), False))
            self._find_in_thoughts()
        return [(text, reasoning) for text, reasoning in ready if text]

    @property
    def held(self) -> list[tuple[str, bool]]:
        """Text that is held back, as it would be shown at the end."""
        parts = [part.held for part in (self._splitter, self._finder) if part is not None]
        if not (self._held or any(parts) or self._decoder.getstate()[0]):
            return []  # the usual case, without copies
        rest = copy.copy(self)
        rest._finder = None if self._finder is None else self._finder.given_up()
        rest._thoughts = []
        rest._decoder, rest._splitter = copy.copy(self._decoder), copy.copy(self._splitter)
        return rest.push(b"", final=True)

    def take_calls(self) -> tuple[ToolCall, ...]:
        """The calls completed since the last call of this method."""
        taken, self._calls = tuple(self._calls), []
        return taken

    def take_deltas(self) -> tuple[ToolCallDelta, ...]:
        """The parts of calls that came since the last call of this method."""
        taken, self._deltas = tuple(self._deltas), []
        return taken

    def _said(self, text: str, final: bool = False, cut: bool = False) -> str:
        """Text of the answer that can be shown now, without calls."""
        if self._finder is None:
            return self._answer(text, final)
        shown = ""
        for part in self._finder.push(text, final, cut):
            self._answered = self._answered or not isinstance(part, str) or not part.isspace()
            if isinstance(part, str):
                shown += self._answer(part)
            elif self.stop_text is not None:
                continue
            elif isinstance(part, ToolCall):
                self._calls.append(part)
            else:
                self._deltas.append(part)
        return shown + self._answer("", final)

    def _find_in_thoughts(self) -> None:
        """Take complete calls from the reasoning of an answer that has nothing else."""
        if self._finder is None or self._answered or self.stop_text is not None:
            return
        finder = CallFinder(self._finder.form, self._finder.tools, self._finder.parallel)
        for part in finder.push("".join(self._thoughts), final=True):
            if isinstance(part, ToolCall) and is_json(part.arguments):
                self._deltas.append(
                    ToolCallDelta(len(self._calls), part.id, part.name, part.arguments)
                )
                self._calls.append(part)

    def _answer(self, text: str, final: bool = False) -> str:
        """Text of the answer that can be shown now."""
        if not self._stop:
            return text
        if self.stop_text is not None:
            return ""
        self._held += text
        starts = [(self._held.find(text), text) for text in self._stop]
        found = [(at + len(text), at, text) for at, text in starts if at >= 0]
        if found:
            # The one that ends first, as if the text had come character by character.
            _, at, self.stop_text = min(found)
            ready, self._held = self._held[:at], ""
            return ready
        keep = 0 if final else max((overlap(self._held, text) for text in self._stop), default=0)
        split = len(self._held) - keep
        ready, self._held = self._held[:split], self._held[split:]
        return ready

"""Text of an answer while it grows: lines that are final, and the rest, which may still change."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markdown import CodeBlock, Heading, Markdown
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text

from localspec.core.formatting import printable

Line = list[Segment]
# No block depends on one far from it, nothing is left out, and no line below a paragraph makes a
# heading of it.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
_PARSER.disable(["image", "reference", "lheading"])


class PlainText:
    """Text as the model wrote it, in styles: a line is final when the next begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = Text()

    def add(self, text: str, style: str = "") -> None:
        """Add text; control characters are replaced."""
        text, start = printable(text), len(self._line)
        last = self._line.spans[-1] if self._line.spans else None
        if last is not None and last.style == style and last.end == start:
            start = self._line.spans.pop().start
        self._line.append(text)
        if style:
            self._line.stylize(style, start)

    def final(self, rows: int) -> Iterator[RenderableType]:
        """Return the text that is final and not printed yet."""
        *whole, self._line = self._line.split("\n", allow_blank=True)
        yield from whole

    def unfinished(self, rows: int) -> Iterable[RenderableType]:
        """The last ``rows`` of the text that may still change."""
        lines = self._line.split("\n", allow_blank=True)
        wrapped = [row for line in lines for row in line.wrap(self._console, self._console.width)]
        return wrapped[max(0, len(wrapped) - rows) :]

    def end(self) -> Iterator[RenderableType]:
        """All that was not printed, as the text is complete."""
        yield from self.final(0)
        if self._line:
            yield self._line


class _Block(NamedTuple):
    """A block of Markdown, or one item of a list; ``gap``: a blank line is before it."""

    tokens: list[Token]
    line: int  # of the source, where it begins
    gap: bool

    @property
    def grows_at_its_end(self) -> bool:
        """Whether later text changes none but the last two rows: no markup can be open."""
        kinds = [token.type for token in self.tokens]
        if kinds[0] == "fence":
            return True
        if set(kinds) - _PLAIN_KINDS or kinds.count("inline") != 1:
            return False
        return not any(_OPEN.search(each.content) for each in self._inline)

    @property
    def is_complete_above(self) -> bool:
        """Whether text that follows its first words cannot change the text above it."""
        words = "".join(each.content for each in self._inline).split()
        return self.grows_at_its_end and len(words) > 1

    @property
    def _inline(self) -> list[Token]:
        """The parts of its text without code spans."""
        parts = [each for token in self.tokens for each in token.children or []]
        return [each for each in parts if each.type != "code_inline"]


_PLAIN_KINDS = {"inline"} | {
    f"{name}_{end}"
    for name in ("paragraph", "list_item", "bullet_list", "ordered_list")
    for end in ("open", "close")
}
# Characters that later text may turn into markup: emphasis, code, a link, an address, a table.
_OPEN = re.compile(
    r"\*(?!\s)|(?<!\w)_(?!\s)|~(?=~\S|~?$)|`|\[(?![^\]]*\][^(])|<(?=[A-Za-z][^\s<>]*$|$)|\|"
)


class MarkdownText:
    """Markdown: a block is final when the next begins, an item of a list too.

    So are the rows of code and of a paragraph without open markup, all but the last two: the less
    is redrawn, the less a window that becomes narrower can leave of it. HTML is shown as it is
    written, and so is the address of a link.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._source = ""  # that of the last block, and the text since
        self._gap = False
        self._printed = 0  # lines of the last block
        self._width = console.width  # the same for all lines of a block, as they are counted
        self._rows: list[Line] = []

    def add(self, text: str, style: str = "") -> None:
        self._source += printable(text)

    def final(self, rows: int) -> Iterator[RenderableType]:
        if not (blocks := self._blocks()):
            return
        is_begun = blocks[-1].line == self._source.count("\n")  # its first line is not complete
        sure = max(0, len(blocks) - 1 - (is_begun and not blocks[-1].is_complete_above))
        for block in blocks[:sure]:
            yield _joined(self._lines(block)[self._printed :])
            self._printed = 0
        first, *others = blocks[sure:]
        self._source = "\n".join(self._source.split("\n")[first.line :])
        self._gap = first.gap
        self._width = self._width if self._printed else self._console.width
        self._rows = self._lines(first)[self._printed :]
        self._rows += [line for block in others for line in self._lines(block)]
        ready = 0 if others else len(self._rows) - 2
        if ready > 0 and first.grows_at_its_end:
            yield _joined(self._rows[:ready])
            self._printed += ready
            del self._rows[:ready]

    def unfinished(self, rows: int) -> Iterable[RenderableType]:
        # As texts, which wrap: code is as wide as it was written, and the window may be narrower
        # than other rows are by now.
        texts = [
            Text.assemble(*((part.text, part.style or "") for part in row)) for row in self._rows
        ]
        wrapped = [row for text in texts for row in text.wrap(self._console, self._console.width)]
        yield from wrapped[max(0, len(wrapped) - rows) :]

    def end(self) -> Iterator[RenderableType]:
        yield from self.final(2)
        if self._rows:
            yield _joined(self._rows)
        self._source, self._rows, self._printed, self._gap = "", [], 0, False

    def _blocks(self) -> list[_Block]:
        tokens = _PARSER.parse(self._source)
        _clean(tokens)
        found: list[_Block] = []
        for block in _nested(tokens):
            if not block[0].type.endswith("_list_open"):
                found.append(_Block(block, _line(block[0]), gap=True))
                continue
            for item in _nested(block[1:-1]):
                start = block[0].copy()
                if item[0].info:  # the number as it is written
                    start.attrs = {"start": int(item[0].info)}
                gap = item[0] is block[1]
                found.append(_Block([start, *item, block[-1]], _line(item[0]), gap))
        return [found[0]._replace(gap=self._gap), *found[1:]] if found else []

    def _lines(self, block: _Block) -> list[Line]:
        document = _CopiedMarkdown("", hyperlinks=False)  # a link must not hide its address
        document.parsed = block.tokens
        width, (first, *_) = self._width, block.tokens
        if first.type in ("fence", "code_block"):  # the terminal wraps it: lines are copied whole
            width = max(width, *(cell_len(line) for line in first.content.expandtabs().split("\n")))
        options = self._console.options.update(width=width)
        lines = [*map(_stripped, self._console.render_lines(document, options, pad=False))]
        filled = [i for i, line in enumerate(lines) if line]
        lines = lines[filled[0] : filled[-1] + 1] if filled else []
        return [*([[]] if block.gap else []), *lines]


class _Code(CodeBlock):
    """Code that is copied from the window as it was written."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme="ansi_dark", word_wrap=True)


class _Heading(Heading):
    """A heading as it was written: it may be a comment, if a model gives code without a fence."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield Text.assemble("#" * int(self.tag[1:]), " ", self.text, style=self.style_name)


class _CopiedMarkdown(Markdown):
    elements = {
        **Markdown.elements, "fence": _Code, "code_block": _Code, "heading_open": _Heading
    }  # fmt: skip


def _clean(tokens: Iterable[Token]) -> None:
    """Replace control characters that entities stand for; let line ends stay line ends."""
    for token in tokens:
        token.content = printable(token.content)
        token.attrs = {
            name: printable(value) if isinstance(value, str) else value
            for name, value in token.attrs.items()
        }
        if token.type == "softbreak":
            token.type = "hardbreak"
        _clean(token.children or [])


def _nested(tokens: list[Token]) -> Iterator[list[Token]]:
    """The tokens of each block of the outermost level."""
    block: list[Token] = []
    depth = 0
    for token in tokens:
        block.append(token)
        depth += token.nesting
        if depth == 0:
            yield block
            block = []


def _line(token: Token) -> int:
    return token.map[0] if token.map else 0


def _stripped(line: Line) -> Line:
    """A line without the invisible blanks at its end."""
    *others, last = line or [Segment("")]
    if last.style is not None and last.style.bgcolor is not None:
        return line
    text = last.text.rstrip()
    return [*others, Segment(text, last.style)] if text else _stripped(others) if others else []


def _joined(lines: list[Line]) -> RenderableType:
    return Segments([segment for line in lines for segment in (*line, Segment.line())])

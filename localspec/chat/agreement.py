"""Whether a drafted answer and the plain one have the same text; if not, from where on, and why."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from localspec.chat.answer import Answer, Piece, collect
from localspec.core.formatting import one_line
from localspec.core.options.generate_options import GenerateOptions
from localspec.speculative.prefix import common_prefix

_NEAR = 1.0  # logits: rows of passes of other widths differ by less; 0.46 was the most seen
_LONGEST = 20  # characters of a word that is shown

Stream = Callable[[Sequence[int], GenerateOptions], Iterator[Piece]]


def agreement(
    stream: Stream, prompt: Sequence[int], options: GenerateOptions, drafted: Answer, plain: Answer
) -> str:
    """A clause on both texts; ``stream`` decodes once more to measure how near a tie was."""
    if drafted.tokens == plain.tokens:
        return "the same text"
    if not options.sampling.text_independent_of_draft:
        return "another text, as rejection draws"
    other, words = (f"{each.reasoning} {each.text}".split() for each in (drafted, plain))
    same = common_prefix(other, words)
    found = " for ".join(_quoted(each[same : same + 1]) for each in (other, words))
    context = [*prompt, *plain.tokens[: common_prefix(drafted.tokens, plain.tokens)]]
    return f"another text from word {same + 1} on, {found}: {_reason(stream, context, options)}"


def _quoted(words: list[str]) -> str:
    return f'"{one_line(words[0])[:_LONGEST]}"' if words else "its end"


def _reason(stream: Stream, context: list[int], options: GenerateOptions) -> str:
    """Why the token after ``context`` differs; the noise of sampling is not known here."""
    if not options.sampling.greedy:
        return "probably a near tie, which --exact prevents"
    once = replace(options, draft_tokens=0, max_tokens=1, logprobs=2)
    for each in collect(stream(context, once)).logprobs:
        apart = each.top[0][1] - each.top[1][1]
        if apart > _NEAR:
            return f"no near tie ({apart:.2g} logits apart); localspec bench finds out why"
        return f"a near tie ({apart:.2g} logits apart), which --exact prevents"
    return "probably a near tie, which --exact prevents"  # the text ends there

"""Gemma 4's notation of arguments: JSON with its own quotes, and none around names."""

import json
import re

# A quote that has not ended yet is none of these.
_TOKEN = re.compile(
    r'<\|"\|>(?P<text>.*?)<\|"\|>|(?P<mark>[{}\[\],:])|(?P<bare>(?:(?!<\|"\|>)[^{}\[\],:])+)',
    re.DOTALL,
)
_LITERAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")


def gemma_object(text: str, start: int) -> tuple[str, int] | None:
    """The object that begins at ``start`` as JSON, and where it ends; None where it does not.

    What is written may still be no JSON, where the notation is broken.
    """
    parts: list[str] = []
    depth, at = 0, start
    while token := _TOKEN.match(text, at):
        at = token.end()
        parts.append(_as_json(token, named=text[at : at + 1] == ":"))
        depth += (token["mark"] or " ") in "{["
        depth -= (token["mark"] or " ") in "}]"
        if depth == 0:
            return "".join(parts), at
    return None


def _as_json(token: re.Match[str], named: bool) -> str:
    if token["mark"]:
        return token["mark"]
    if token["text"] is not None:
        return json.dumps(token["text"])
    bare = token["bare"].strip()
    return bare if not bare or (_LITERAL.fullmatch(bare) and not named) else json.dumps(bare)

"""Message content of any API as text; images and unknown blocks become notes or are dropped."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from localspec.chat.tools.tool import as_json, is_shallow

_MEDIA = {"image": "image", "audio": "audio", "video": "video", "file": "file", "document": "file"}
_TEXTS = ("text", "refusal")
_LONGEST_WORD = 1000  # characters without white space: more is encoded data
_HIDDEN = ("thinking", "redacted_thinking", "reasoning")  # types of parts that are no answer


def text_of(content: object) -> str:
    """The text of a message's content: a string, a list of parts, or any other JSON value.

    The texts of parts are joined by line breaks, as in llama.cpp. A picture or a recording becomes
    a note that it is missing, an unknown part its JSON.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return valid_unicode(content)
    parts = content if isinstance(content, list | tuple) else [content]
    return "\n".join([text for text in map(_part_text, parts) if text])


def media_in(content: object) -> set[str]:
    """The kinds of media in a message's content, which are left out."""
    return set(_kinds(content))


def valid_unicode(text: str) -> str:
    """The text with U+FFFD for lone surrogates, such as one half of an emoji."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def without_surrogates(value: Any) -> Any:
    """A JSON value whose texts are `valid_unicode`."""
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, list):
        return [without_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {valid_unicode(str(k)): without_surrogates(each) for k, each in value.items()}
    return value


def _part_text(part: object) -> str:
    if not isinstance(part, Mapping):
        return text_of(part) if isinstance(part, str | list) else as_json(part)
    for key in _TEXTS:
        if isinstance(part.get(key), str):
            return valid_unicode(part[key])
    if part.get("type") in _HIDDEN or part.get("text", "") is None:
        return ""
    source = part.get("source")
    if isinstance(source, Mapping) and source.get("type") in ("text", "content"):
        title = part.get("title")
        inner = source.get("data") if source["type"] == "text" else source.get("content")
        return "\n".join([text for text in (text_of(title), text_of(inner)) if text])
    if kind := _medium(part):
        return f"[{kind} left out: this model reads text only]"
    return valid_unicode(as_json(_without_data(part))) if is_shallow(dict(part)) else ""


def _medium(part: Mapping[str, Any]) -> str:
    """The kind of medium that a part holds; "" for none."""
    kind = str(part.get("type", "")).removeprefix("input_").removesuffix("_url")
    return _MEDIA.get(kind, "")


def _kinds(content: object) -> Iterator[str]:
    for part in content if isinstance(content, list | tuple) else ():
        if isinstance(part, Mapping):
            source = part.get("source")
            is_text = isinstance(source, Mapping) and source.get("type") in ("text", "content")
            if not is_text and (kind := _medium(part)):
                yield kind
            yield from _kinds(part.get("content"))


def _without_data(value: Any) -> Any:
    """A JSON value without encoded data, which no model can read."""
    if isinstance(value, Mapping):
        entries: Iterable[tuple[str, Any]] = value.items()
        return {key: _without_data(each) for key, each in entries if not _is_data(each)}
    if isinstance(value, list):
        return [_without_data(each) for each in value if not _is_data(each)]
    return value


def _is_data(value: object) -> bool:
    return isinstance(value, str) and any(len(word) > _LONGEST_WORD for word in value.split())

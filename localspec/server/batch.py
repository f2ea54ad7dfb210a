"""Requests of a file, answered without HTTP in the form of OpenAI's Batch API."""

import asyncio
import json
import secrets
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from localspec.chat.prompt_file import read_prompt_file
from localspec.chat.stats import GenerationStats
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import appearing_when_complete, file_problem, read_at_most
from localspec.server.api.answers import Answers
from localspec.server.api.chat import ChatReply, ChatRequest
from localspec.server.api.completions import CompletionReply, CompletionRequest
from localspec.server.api.replies import Json, OpenAIReply
from localspec.server.api.requests import AnswerRequest
from localspec.server.errors import BadRequest, bad_request, describe
from localspec.server.service import Service

_MOST_BYTES = 2**30  # of a file of requests or results
_HINT = (
    'Write each prompt on a line of its own, as text or JSON: {"prompt": "..."}; '
    "an array becomes such lines by: jq -c '.[]' ARRAY.json"
)
_ID = "batch_req_"  # begins the id of a result
_BEGINNING = f'{{"id": "{_ID}'.encode()  # of a line of results
_FORMS: dict[str, tuple[type[AnswerRequest], type[OpenAIReply]]] = {
    "/v1/chat/completions": (ChatRequest, ChatReply),
    "/v1/completions": (CompletionRequest, CompletionReply),
}


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of a file of requests; ``custom_id`` is its own, or else the line's number."""

    custom_id: str
    request: object


def read_lines(path: Path) -> list[BatchLine]:
    """The lines that are not empty; one without JSON is a text. Raises FileProblem, UsageError."""
    lines: dict[str, BatchLine] = {}
    for number, request in read_prompt_file(path, _MOST_BYTES, "The batch ", _HINT):
        given = request.get("custom_id", request.get("id")) if isinstance(request, dict) else None
        line = BatchLine(str(number) if given is None else str(given), request)
        if line.custom_id in lines:
            raise UsageError(
                f"Two lines of {path} have the custom_id {line.custom_id!r}.",
                "Give each line its own, or none at all.",
            )
        lines[line.custom_id] = line
    return list(lines.values())


def read_done(path: Path, lines: Sequence[BatchLine]) -> set[str]:
    """The ids of lines that have an answer.

    A last result that was cut off is removed from the file, and so are errors: their lines are
    asked again. Raises FileProblem for a file that is not the results of these lines.
    """
    if not path.is_file():
        return set()
    what = f"The file of results {path} cannot be read"
    with file_problem(what, "Name another with -o.", ValueError):
        data = read_at_most(path, _MOST_BYTES)
    whole, _, cut = data.rpartition(b"\n")
    known = {line.custom_id for line in lines}
    results = whole.removeprefix(BOM_UTF8).split(b"\n") if whole else []
    done = {each: _done_id(each, path, known) for each in results}
    begun = cut.removeprefix(BOM_UTF8)  # which is removed, and must begin a result
    if begun[: len(_BEGINNING)] != _BEGINNING[: len(begun)]:
        raise _other_file(path)
    kept = [each for each in results if done[each] is not None]
    if len(kept) < len(results):
        with appearing_when_complete(path) as partial:
            partial.write_bytes(b"".join(each + b"\n" for each in kept))
    elif cut:
        with path.open("r+b") as file:
            file.truncate(len(data) - len(cut))
    return {custom_id for custom_id in done.values() if custom_id is not None}


def _done_id(result: bytes, path: Path, known: Set[str]) -> str | None:
    """The id of a result, which is one of ``known``; None for an error."""
    try:
        found = json.loads(result)
        custom_id = found["custom_id"]
        status = found["response"]["status_code"]  # which a line of requests does not have
    except (ValueError, LookupError, TypeError, RecursionError):
        custom_id = status = None
    if not isinstance(status, int) or not isinstance(custom_id, str) or custom_id not in known:
        raise _other_file(path)
    return custom_id if status == 200 else None


def _other_file(path: Path) -> FileProblem:
    return FileProblem(
        f"{path} holds something else than results of this batch.",
        "Name another file with -o, or remove this one.",
    )


@dataclass(eq=False, slots=True)
class BatchRun:
    """Answers lines in their order, up to ``parallel`` at the same time.

    ``fields`` are those of a request that a line does not have. Each result is written to
    ``output`` when it is complete; ``on_result`` is called after that. ``results``
    and ``errors`` count them, ``stats`` are the sums.
    """

    service: Service
    output: TextIO
    parallel: int = 1
    fields: Mapping[str, object] = field(default_factory=dict)
    system: str | None = None
    on_result: Callable[[], None] = lambda: None
    stats: GenerationStats = field(default_factory=GenerationStats, init=False)
    results: int = field(default=0, init=False)
    errors: int = field(default=0, init=False)

    def run(self, lines: Sequence[BatchLine]) -> None:
        """Answer these lines; Ctrl-C ends those under way, without a result."""
        asyncio.run(self._run(iter(lines)))

    async def _run(self, lines: Iterator[BatchLine]) -> None:
        async with asyncio.TaskGroup() as group:
            # One more than there are slots, so that none waits for the next line to be read.
            for _ in range(self.parallel + 1):
                group.create_task(self._work(lines))

    async def _work(self, lines: Iterator[BatchLine]) -> None:
        for line in lines:  # shared by all tasks
            name = f"{_ID}{secrets.token_hex(12)}"
            try:
                _require_text(line.custom_id)
                status, body = 200, await self._answer(line.request)
            except Exception as error:
                self.errors += 1
                status, body, _ = describe(error, name)
            result = {
                "id": name,
                "custom_id": line.custom_id,
                "response": {"status_code": status, "request_id": name, "body": body},
                "error": None,
            }
            self.output.write(_as_line(result))
            self.output.flush()
            self.results += 1
            self.on_result()

    async def _answer(self, line: object) -> Json:
        url, body = _body(line, self.system)
        read, form = _FORMS[url]
        # The model is the one that was loaded, and a file cannot be streamed.
        ignored = {"model": None, "stream": None, "stream_options": None}
        body = {**self.fields, **body, **ignored}
        try:
            request = read.model_validate(body)
        except ValidationError as error:
            raise bad_request(error.errors(), body) from None
        requests, warnings = await asyncio.to_thread(request.read, self.service)
        reply = form(request, self.service, warnings)
        answers = Answers(self.service.session, requests, self.service.metrics)
        try:
            await answers.rest()
        finally:
            answers.close()
        self.stats.merge(answers.stats)
        return reply.whole(answers)


def _is_text(text: str) -> bool:
    """Whether UTF-8 can hold a text: not half a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _require_text(custom_id: str) -> None:
    if not _is_text(custom_id):
        raise BadRequest(
            "The custom_id holds half a surrogate pair.", "Give it an id that is text in UTF-8."
        )


def _as_line(result: Json) -> str:
    """JSON that can be written in UTF-8, for any line."""
    line = json.dumps(result, ensure_ascii=False)
    return (line if _is_text(line) else json.dumps(result)) + "\n"


def _body(line: object, system: str | None) -> tuple[str, Json]:
    """Path and body of the request that a line stands for; raises BadRequest."""
    url = "/v1/chat/completions"
    if isinstance(line, dict) and isinstance(line.get("body"), dict):
        url, line = str(line.get("url", url)), line["body"]
    if url not in _FORMS:
        raise BadRequest(f"There is nothing at {url}.", f"A batch may ask: {', '.join(_FORMS)}.")
    body = {"messages": line} if isinstance(line, str | list) else line
    if not isinstance(body, dict):
        raise BadRequest(
            "The line is not a request.",
            "Give a JSON string, a list of messages, or an object with messages or a prompt.",
        )
    if url == "/v1/completions":
        return url, body
    body = {name: each for name, each in body.items() if name not in ("custom_id", "id")}
    messages = body.pop("prompt", None) if "messages" not in body else body["messages"]
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if system is not None and isinstance(messages, list):
        messages = [{"role": "system", "content": system}, *messages]
    return url, {**body, "messages": messages}

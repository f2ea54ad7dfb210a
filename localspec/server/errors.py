"""Errors in the form of OpenAI's API, or of Anthropic's on its paths."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from localspec.core.errors import (
    GrammarError,
    LocalspecError,
    NotNumbers,
    PromptTooLong,
    TemplateError,
    TemplateLimitExceeded,
    UsageError,
    WorkerLost,
)
from localspec.engine.session.limits import Unavailable

logger = logging.getLogger("localspec.server")

TOO_LARGE = "The body is larger than this server takes (--max-body)."
_NOT_NUMBERS = (
    "The model's logits after this text are not numbers, so it has no answer; its file may be "
    "damaged. Other texts may be answered."
)
_FULL = "context_length_exceeded"  # OpenAI's code
_MOST_CHARACTERS = 1000  # of a text that may quote the request
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MESSAGES = "/v1/messages"  # Anthropic's path, and the beginning of its others
_ANTHROPIC_TYPES = {413: "request_too_large", 503: "overloaded_error"}
# Another request could succeed.
_CLIENT_ERRORS = (UsageError, GrammarError, TemplateError, TemplateLimitExceeded, PromptTooLong)
# Types of parts that hold no text.
_OTHER_MEDIA = "image_url input_image image input_audio file input_file document".split()


class BodyRefused(HTTPException):
    """A body that is not read to its end; ``detail`` is the reason."""


class BadRequest(LocalspecError):
    """An invalid request; ``status`` is HTTP's, ``param`` the field at fault."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.param = param
        self.code = code


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    place = None if param is None else presentable(param)
    return {
        "error": {
            "message": presentable(message),
            "type": _type(status),
            "param": place,
            "code": code,
        }
    }


def _type(status: int) -> str:
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_for(path: str, status: int, body: dict[str, Any], request_id: str) -> dict[str, Any]:
    """The JSON object of an error, in the form of the API that the path belongs to."""
    return anthropic_error(status, body, request_id) if is_anthropic(path) else body


def is_anthropic(path: str) -> bool:
    return path == _MESSAGES or path.startswith(f"{_MESSAGES}/")


def anthropic_error(status: int, body: dict[str, Any], request_id: str) -> dict[str, Any]:
    """The JSON object of an error in Anthropic's form, from that in OpenAI's."""
    error = body["error"]
    kind = "api_error" if status >= 500 else _type(status)
    kind = _ANTHROPIC_TYPES.get(status, kind)
    # Claude Code knows by these words that the context is full.
    begin = "prompt is too long: " if error["code"] == _FULL else ""
    details = {"details": {"error_code": error["code"]}} if error["code"] else {}
    found = {"type": kind, "message": begin + error["message"], **details}
    return {"type": "error", "error": found, "request_id": request_id}


class ErrorResponse(Response):
    """An error, in the form of the API whose path was requested."""

    def __init__(
        self, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status_code=status)
        self._error = body
        self._more_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = self.status_code
        scope.setdefault("state", {})["code"] = self._error["error"]["code"]  # for the log
        body = error_for(scope["path"], status, self._error, request_id(Request(scope)))
        await JSONResponse(body, status, headers=self._more_headers)(scope, receive, send)


def refusal(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None
) -> ErrorResponse:
    """The reply to a request that is not answered."""
    return ErrorResponse(status, error_body(status, message, code=code), headers)


def presentable(text: str) -> str:
    """A text that may quote the request: cut, and lone surrogates replaced."""
    shown = text[:_MOST_CHARACTERS] + "..." * (len(text) > _MOST_CHARACTERS)
    return shown.encode("utf-8", "replace").decode()


def describe(error: BaseException, request_id: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for an error; details of a server error go to the log only."""
    headers: dict[str, str] = {}
    param = None
    if isinstance(error, BadRequest):
        status, param, code = error.status, error.param, error.code
    elif isinstance(error, Unavailable):
        status, code = error.status, error.code
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
    elif isinstance(error, WorkerLost):
        status, code = 503, None
    elif isinstance(error, NotNumbers):
        logger.error("Request %s: %s", request_id, error)
        return 500, error_body(500, _NOT_NUMBERS), {}
    elif isinstance(error, _CLIENT_ERRORS):
        status = 400
        code = _FULL if isinstance(error, PromptTooLong) else None
    else:
        logger.error("Request %s failed.", request_id, exc_info=error)
        message = f"The server failed to answer; its log says why, under request {request_id}."
        return 500, error_body(500, message), {}
    message = f"{error.message} {error.hint}".strip()
    body = error_body(status, message, param=param, code=code)
    if isinstance(error, PromptTooLong) and error.n_ctx is not None:
        # llama-server's type and figures, by which its clients compact a conversation.
        figures = {"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}
        body["error"] |= {"type": "exceed_context_size_error", **figures}
    return status, body, headers


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(LocalspecError, _failed)
    app.add_exception_handler(RecursionError, _nested)
    app.add_exception_handler(Exception, _failed)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    outside = {**request.path_params, **request.query_params}
    given = error.body if found[0]["loc"][0] == "body" else outside
    errors = [{**each, "loc": each["loc"][1:]} for each in found]
    return await _failed(request, bad_request(errors, given))


def bad_request(errors: Sequence[Mapping[str, Any]], body: Any) -> BadRequest:
    """The error that pydantic found in a body, as a sentence."""
    # A union reports an error for each member: the deepest is that of the intended one; of two,
    # that which is not about the type.
    found = max(errors, key=lambda each: (len(each["loc"]), not each["type"].endswith("_type")))
    param = ".".join(_field_path(body, found))
    if found["type"] == "too_long" and not param:
        return BadRequest(f"{found['msg']} in the body.")
    if found["type"] == "json_invalid" or not param:
        return BadRequest("The body is not a JSON object.")
    return BadRequest(_sentence(param, found), param=param)


def _sentence(param: str, found: Mapping[str, Any]) -> str:
    """The type that a field should have, and its value if that is short."""
    given = found.get("ctx", {}).get("tag", found.get("input"))
    if given in _OTHER_MEDIA:
        return f"{param}: This server takes no images, sound or files, only text."
    expected = found["msg"].removeprefix("Input should be ").partition(", unable to parse")[0]
    if expected == found["msg"]:
        return f"{param}: {expected}."
    expected = expected.replace("a valid integer", "an integer").replace("a valid ", "a ")
    shown = f", not {given!r:.60}" if isinstance(given, str | int | float) else ""
    return f"{param} should be {expected}{shown}."


def _field_path(body: Any, error: Mapping[str, Any]) -> Iterator[str]:
    """Names and indexes down to the field at fault, without pydantic's names of union members."""
    last = error["loc"][-1] if error["loc"] else None
    for part in error["loc"]:
        is_name = isinstance(body, dict) and part in body
        is_index = isinstance(body, list) and isinstance(part, int)
        if is_name or is_index or (part is last and error["type"] == "missing"):
            yield str(part)
            body = body[part] if is_name or is_index else None


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]  # `request.url` depends on the Host header
    messages = {
        404: f"There is nothing at {path}.{_right_place(request)}",
        405: f"{request.method} is not for {path}.",
        413: TOO_LARGE,
        400: "The body is not JSON that this server can read.",
    }
    message = str(error.detail)
    if not isinstance(error, BodyRefused):
        message = messages.get(error.status_code, message)
    return refusal(error.status_code, message, error.headers)


def _right_place(request: Request) -> str:
    """The path to use in place of another server's, or of one with a wrong base URL."""
    path = request.scope["path"]
    host = request.headers.get("host") or "HOST"
    if path.startswith("/api/"):
        base = f"{request.scope['scheme']}://{host[:200]}/v1"
        return f" Ollama's API is not spoken here: use a client of OpenAI's, base URL {base}"
    right = re.sub("^(/v1)+(?=/v1/)", "", re.sub("//+", "/", path))
    return f" Check the base URL: expected {right}" if right != path else ""


async def _nested(request: Request, error: Exception) -> Response:
    return refusal(400, "The request is nested too deeply.")


async def _failed(request: Request, error: Exception) -> Response:
    return ErrorResponse(*describe(error, request_id(request)))


def request_id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", "?"))

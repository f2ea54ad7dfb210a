"""Errors as OpenAI's clients know them: a JSON object with a sentence, a type and a code."""

import logging
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from localspec.core.errors import (
    GrammarError,
    LocalspecError,
    PromptTooLong,
    TemplateError,
    UsageError,
)
from localspec.server.queue.limits import AnswerTimeout, Closing, QueueFull, QueueTimeout

logger = logging.getLogger("localspec.server")

TOO_LARGE = "The body is larger than this server takes (--max-body)."
_MOST_CHARACTERS = 1000  # of what may quote the request
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MENDABLE = (UsageError, GrammarError, TemplateError, PromptTooLong)  # by another request


class BadRequest(LocalspecError):
    """A request that cannot be answered; ``status`` is HTTP's, ``param`` the field at fault."""

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
    """The JSON object of an error."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    place = None if param is None else presentable(param)
    return {"error": {"message": presentable(message), "type": kind, "param": place, "code": code}}


def presentable(text: str) -> str:
    """Text that may quote a request, cut, with what UTF-8 cannot say replaced."""
    shown = text[:_MOST_CHARACTERS] + "..." * (len(text) > _MOST_CHARACTERS)
    return shown.encode("utf-8", "replace").decode()


def describe(error: BaseException, request_id: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for what went wrong.

    Of what no other request would mend only the log says more.
    """
    if isinstance(error, BadRequest):
        told = error_body(error.status, _sentences(error), param=error.param, code=error.code)
        return error.status, told, {}
    if isinstance(error, (QueueFull, QueueTimeout)):
        status = 429 if isinstance(error, QueueFull) else 503
        again = {"Retry-After": str(error.retry_after)}
        return status, error_body(status, _sentences(error), code="queue_full"), again
    if isinstance(error, (AnswerTimeout, Closing)):
        return 503, error_body(503, _sentences(error)), {}
    if isinstance(error, _MENDABLE):
        code = "context_length_exceeded" if isinstance(error, PromptTooLong) else None
        return 400, error_body(400, _sentences(error), code=code), {}
    logger.error("Request %s failed.", request_id, exc_info=error)
    message = f"The server failed to answer; its log says why, under request {request_id}."
    return 500, error_body(500, message), {}


def add_error_handlers(app: FastAPI) -> None:
    """Let every error of an app be told in OpenAI's form."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(LocalspecError, _failed)
    app.add_exception_handler(RecursionError, _nested)
    app.add_exception_handler(Exception, _failed)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = _most_telling(error.errors())
    param = ".".join(_place(error.body, first)) or None
    if first["type"] == "json_invalid" or param is None:
        return JSONResponse(error_body(400, "The body is no JSON object."), 400)
    if first["type"] == "extra_forbidden":
        message = f"There is no field {param}, or it is not supported here."
        return JSONResponse(error_body(400, message, param=param, code="unknown_field"), 400)
    message = f"{param}: {first['msg']}." if param else f"{first['msg']}."
    return JSONResponse(error_body(400, message, param=param), 400)


def _place(body: Any, error: dict[str, Any]) -> Iterator[str]:
    """The way to the field at fault, without what a union calls its members."""
    *_, last = error["loc"]
    for part in error["loc"][1:]:
        is_name = isinstance(body, dict) and part in body
        is_index = isinstance(body, list) and isinstance(part, int)
        if is_name or is_index or (part is last and error["type"] == "missing"):
            yield str(part)
            body = body[part] if is_name or is_index else None


def _most_telling(errors: Any) -> dict[str, Any]:
    """Of several, as a union reports them, the one that lies deepest."""
    found: dict[str, Any] = max(errors, key=lambda each: len(each["loc"]))
    return found


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"There is nothing at {request.url.path}.",
        405: f"{request.method} is not for {request.url.path}.",
        413: TOO_LARGE,
        400: "The body is no JSON that this server can read.",
    }
    message = messages.get(error.status_code, str(error.detail))
    return JSONResponse(
        error_body(error.status_code, message), error.status_code, headers=error.headers
    )


async def _nested(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(error_body(400, "The request is nested too deeply."), 400)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    status, body, headers = describe(error, request_id(request))
    return JSONResponse(body, status, headers=headers)


def request_id(request: Request) -> str:
    """The name of a request in replies and log."""
    return str(request.scope.get("state", {}).get("request_id", "?"))


def _sentences(error: LocalspecError) -> str:
    return f"{error.message} {error.hint}".strip()

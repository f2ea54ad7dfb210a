"""A web service that streams answers as text: web_service.py MODEL PORT

curl -N localhost:8000/ask --json '{"prompt": "What is a lock?", "max_tokens": 40}'
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

import localspec

MOST_ANSWERS = 4  # at a time; more are refused


class Question(BaseModel):
    prompt: str
    max_tokens: int = 256
    temperature: float | None = None


def make_app(model: localspec.Model) -> FastAPI:
    app, free = FastAPI(), asyncio.Semaphore(MOST_ANSWERS)

    async def texts(stream: localspec.Stream) -> AsyncIterator[str]:
        async with free, stream:  # a client that leaves cancels this, and so ends the answer
            async for piece in stream:
                yield piece.text

    @app.post("/ask")
    async def ask(question: Question) -> StreamingResponse:
        if free.locked():
            raise HTTPException(503, "All places are taken.", {"Retry-After": "5"})
        stream = await asyncio.to_thread(model.stream, **dict(question))
        return StreamingResponse(texts(stream), media_type="text/plain")

    @app.exception_handler(localspec.LocalspecError)
    async def refuse(request: Request, error: localspec.LocalspecError) -> JSONResponse:
        """Errors of a request are ValueErrors: a prompt too long, an option that cannot be."""
        unavailable = isinstance(error, localspec.ModelClosed | localspec.WorkerLost)
        status = 503 if unavailable else 400 if isinstance(error, ValueError) else 500
        return JSONResponse({"detail": str(error)}, status)

    return app


if __name__ == "__main__":
    target, port = (*sys.argv[1:], *["demo", "8000"][len(sys.argv) - 1 :])
    with localspec.load(target, parallel=2) as model:
        uvicorn.run(make_app(model), port=int(port), timeout_graceful_shutdown=5)

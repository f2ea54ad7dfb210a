"""Answers questions at once, with a Python function as tool: tools_async.py MODEL QUESTION ..."""

import asyncio
import sys
from typing import Any, Literal

from pydantic import ValidationError, validate_call

import localspec

ROUNDS: tuple[Literal["required", "auto"], ...] = ("required", "auto", "auto")  # then no calls


def degrees(city: Literal["Paris", "Rome"], unit: Literal["C", "F"]) -> float:
    """The temperature in a city now."""
    celsius = {"Paris": 14.5, "Rome": 21.0}[city]
    return celsius if unit == "C" else celsius * 1.8 + 32


def result(call: localspec.ToolCall) -> dict[str, Any]:
    """The message that answers a call: its value, or the error for the model to correct."""
    try:
        return call.result(validate_call(degrees)(**call.parsed_arguments()))
    except ValidationError as error:  # arguments that the answer's end has cut off
        return call.result(f"Error: {error}")


async def ask(model: localspec.Model, question: str) -> str:
    """The final answer, after the calls that lead to it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for choice in ROUNDS:
        answer = await model.agenerate(messages, tools=[degrees], tool_choice=choice)
        if not answer.tool_calls:
            return answer.text
        messages.append(answer.message)
        messages += [await asyncio.to_thread(result, call) for call in answer.tool_calls]
    return (await model.agenerate(messages, tools=[degrees], tool_choice="none")).text


async def main(target: str, *questions: str) -> None:
    loaded = await asyncio.to_thread(localspec.load, target, parallel=2, max_tokens=200)
    async with loaded as model:
        for text in await asyncio.gather(*(ask(model, question) for question in questions)):
            print(text)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["demo", "How warm is Rome?", "How warm is Paris?"])))

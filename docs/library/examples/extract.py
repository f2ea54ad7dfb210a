"""Extracts fields from sentences by a schema: extract.py MODEL SENTENCE ..."""

import sys
from typing import Any

from pydantic import BaseModel, Field, ValidationError, model_validator

import localspec

TRIES = 4
MAX_TOKENS = 24  # doubled after an answer that it has cut off


class Booking(BaseModel):
    """Lengths have bounds, so that the answer has one."""

    city: str = Field(max_length=20)
    first_day: int = Field(ge=1, le=31)
    last_day: int = Field(ge=1, le=31)

    @model_validator(mode="after")
    def _in_order(self) -> "Booking":
        """A rule that a JSON schema, and so the grammar of the answer, cannot express."""
        if self.last_day < self.first_day:
            raise ValueError("last_day is before first_day")
        return self


def extract(model: localspec.Model, text: str, form: type[Booking] = Booking) -> Booking | None:
    """The fields of a text; None if no answer has been valid."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Extract as JSON: {text}"}]
    limit = MAX_TOKENS
    for _ in range(TRIES):
        answer = model.generate(messages, json_schema=form, max_tokens=limit)
        if answer.finish_reason != "stop":
            limit *= 2
            continue
        try:
            return form.model_validate_json(answer.text)
        except ValidationError as error:
            wrong = "; ".join(each["msg"] for each in error.errors())
            messages += [answer.message, {"role": "user", "content": f"Correct this: {wrong}"}]
    return None


if __name__ == "__main__":
    target, *sentences = sys.argv[1:] or ["demo", "Rome from May 3 to May 7."]
    with localspec.load(target) as model:
        for sentence in sentences:
            print(extract(model, sentence) or f"No valid answer: {sentence}")

"""Why a controller drafts nothing at present, as a value; `display` puts it in words."""

from enum import StrEnum


class DraftStatus(StrEnum):
    """What a controller does at present; the value is what JSON shows."""

    DRAFTING = ""  # or it may at any time
    OFF = "off"  # as asked for
    RECENTLY_SLOWER = "recently_slower"  # the loss budget is spent
    VERIFICATION_TOO_SLOW = "verification_too_slow"  # even a good draft would not pay here
    DRAFT_TOO_OFTEN_WRONG = "draft_too_often_wrong"
    ANSWER_TOO_SHORT = "answer_too_short"  # for the draft to read the prompt first

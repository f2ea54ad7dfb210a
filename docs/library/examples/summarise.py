"""Summarises text files, and shows how much of each is read: summarise.py MODEL FILE ..."""

import sys
from pathlib import Path

import localspec

PROMPT = "Summarise this text in three sentences:\n\n"
MAX_TOKENS = 160


def show(progress: localspec.Progress) -> None:
    print(f"\r{progress.read} of {progress.total} tokens are read", end="", file=sys.stderr)


def summary(model: localspec.Model, text: str) -> str:
    """A summary; that of a text longer than the context is made from summaries of its halves."""
    try:
        answer = model.generate(PROMPT + text, max_tokens=MAX_TOKENS, on_progress=show)
        print(file=sys.stderr)
        if answer.finish_reason != "context":  # which left no room for the whole answer
            return answer.text.strip()
    except localspec.PromptTooLong:
        pass
    halves = (text[: len(text) // 2], text[len(text) // 2 :])
    return summary(model, "\n".join(summary(model, half) for half in halves))


def main(target: str, *files: str) -> None:
    with localspec.load(target) as model:
        for file in files:
            try:
                text = Path(file).read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                print(error, file=sys.stderr)
                continue
            print(f"{file}: {summary(model, text)}\n", flush=True)


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["demo", __file__]))
    except localspec.LocalspecError as error:
        sys.exit(str(error))

"""Answers forty prompts into a file of JSON lines; after Ctrl-C, run it again to go on.

resume.py MODEL ANSWERS
"""

import json
import os
import sys
from contextlib import closing
from pathlib import Path

import localspec

MODULES = [name for name in sorted(sys.stdlib_module_names) if not name.startswith("_")]
PROMPTS = [f"What is the module {name} for?" for name in MODULES[:40]]
MAX_TOKENS = 48


def answered(path: Path) -> set[str]:
    """The prompts that have an answer in the file; a line that a kill has cut off is removed."""
    path.touch()
    held = path.read_bytes()
    whole = held[: held.rfind(b"\n") + 1]
    os.truncate(path, len(whole))
    return {json.loads(line)["prompt"] for line in whole.splitlines()}


def main(target: str, path: Path) -> None:
    done = answered(path)
    left = [prompt for prompt in PROMPTS if prompt not in done]
    with localspec.load(target, parallel=2) as model, path.open("a", encoding="utf-8") as file:
        with closing(model.answer_each(left, max_tokens=MAX_TOKENS)) as answers:
            for index, answer in answers:
                if isinstance(answer, localspec.LocalspecError):  # asked again the next time
                    print(f"{left[index]}: {answer}", file=sys.stderr)
                    continue
                file.write(json.dumps({"prompt": left[index], "answer": answer.text}) + "\n")
                file.flush()


if __name__ == "__main__":
    target, path = (*sys.argv[1:], *["demo", "answers.jsonl"][len(sys.argv) - 1 :])
    try:
        main(target, Path(path))
    except KeyboardInterrupt:
        sys.exit(f"Interrupted: {path} has {len(answered(Path(path)))} answers.")

"""A coding agent of 20 turns, on this server and on llama-server, with the same pair of models.

    python benchmarks/agent.py --bin llama-build/bin

`benchmarks/plain.py` says how to build llama.cpp's programs; build the target llama-server. The
agent works on localspec's own sources: it searches, reads, edits and tests one file after the
other. What it called and what came back is recorded, so each turn sends the same conversation
whatever a model said before: system message, tools, the calls and results so far. Three turns of
four demand a call, the fourth a text. Answers are greedy and streamed.

The models are the padded demo pair. They were trained on 2,048 tokens; another base of the rotary
positions makes them read 8,192 as well (loss 3.0 behind 5,000 tokens, 2.9 behind none). Their
answers are Python-like nonsense: the figures tell of costs, scaffolds of calls and repeated text,
not of a model that edits files, which copies more.

All servers are loaded at once and take turns; one computes at a time. TTFT is the time until the
first part of a text or call, by the client's clock; tokens per second are each server's own figure.
Shares of tokens come from the server's metrics: proposed by the draft model, by prompt lookup,
taken from earlier answers, or the only token that the grammar of a call allows.
"""

import argparse
import itertools
import json
import re
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from client import Json, ask
from common import Parser, conditions, listening, padded_pair, span, write_json

import localspec
from localspec.core import machine

TURNS = 20
CONTEXT = 8192
# llama-server gives a slot no more than the context of the training.
POSITIONS = ("llama.rope.freq_base=float:320000", f"llama.context_length=int:{CONTEXT}")
TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' -}}
{%- if message.role == 'tool' -%}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- else -%}{{- message.content or '' -}}{%- endif -%}
{%- if tools and loop.first -%}
{{- '\\n<tools>' -}}{%- for tool in tools -%}{{- '\\n' + tool | tojson -}}{%- endfor -%}
{{- '\\n</tools>\\nCall one by:\\n' -}}
{{- '<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' -}}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}{%- set call = call.function -%}
{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' -}}
{{- call.arguments | tojson + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
TOOLS = {
    "search": ("path", "pattern"),
    "read_file": ("path", "begin"),
    "edit_file": ("path", "old", "new"),
    "run_tests": ("path",),
}
SYSTEM = "You are a coding agent. Work on the repository with the tools, one call at a time."
PEERS = ("none", "draft-simple", "ngram-simple", "ngram-mod", "draft-simple,ngram-mod")
SOURCES = ("draft", "lookup", "history", "forced")
_ACCEPTED = re.compile(r'^localspec_accepted_tokens_total\{source="(\w+)"\} (\S+)$', re.M)


def conversation() -> Iterator[list[Json]]:
    """What each turn sends: all that was said before."""
    root = Path(localspec.__file__).parent
    task = "Give the functions shorter names, one file after the other, and run the tests."
    said: list[Json] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    files = (path for path in sorted(root.rglob("*.py")) if path.stat().st_size > 3000)
    for path in files:
        for name, arguments, result in _work(path.relative_to(root.parent), path.read_text()):
            yield list(said)
            call = {"name": name, "arguments": json.dumps(arguments)}
            called = [{"id": f"call{len(said):05}", "type": "function", "function": call}]
            said.append({"role": "assistant", "content": "", "tool_calls": called})
            said.append({"role": "tool", "tool_call_id": called[0]["id"], "content": result})
        yield list(said)
        said.append({"role": "assistant", "content": f"{path.name} is done; its tests pass."})
        said.append({"role": "user", "content": "Go on with the next file."})


def _work(path: Path, text: str) -> Iterator[tuple[str, Json, str]]:
    """The calls for one file, with their results."""
    lines = text.splitlines()
    found = [i for i, line in enumerate(lines) if line.lstrip().startswith("def ")]
    at = {"path": str(path)}
    result = "\n".join(f"{path}:{i + 1}: {lines[i].strip()}" for i in found[:10])
    yield "search", at | {"pattern": "def "}, result
    begin = max(0, found[0] - 8)
    yield "read_file", at | {"begin": begin + 1}, "\n".join(lines[begin : begin + 28])
    old = "\n".join(lines[found[0] : found[0] + 5])
    name = re.findall(r"def (\w+)", old)[0]
    new = old.replace(name, name[:4])
    yield "edit_file", at | {"old": old, "new": new}, f"Edited:\n{new}"


def tools() -> list[Json]:
    """The tools as OpenAI's API takes them; all arguments are required texts."""
    made = []
    for name, arguments in TOOLS.items():
        properties = {each: {"type": "string"} for each in arguments}
        schema = {"type": "object", "properties": properties, "required": list(arguments)}
        function = {"name": name, "description": f"Use {name}.", "parameters": schema}
        made.append({"type": "function", "function": function})
    return made


@dataclass(frozen=True, slots=True)
class Answer:
    """Figures of one turn; ``accepted`` counts tokens by what drafted them."""

    ttft: float  # seconds
    prompt: int  # tokens read, without those in the cache
    tokens: int
    speed: float  # tokens per second
    accepted: dict[str, int]
    text: str


def answer(port: int, messages: list[Json], *, call: bool, tokens: int) -> Answer:
    """The answer of one turn."""
    choice, before = "required" if call else "auto", accepted(port)
    reply = ask(port, messages, stream=True, tools=tools(), tool_choice=choice, max_tokens=tokens)
    assert reply.ttft is not None, "the answer is empty"
    now = accepted(port)
    return Answer(
        reply.ttft,
        reply.timings["prompt_n"],
        reply.tokens,
        reply.timings["predicted_per_second"],
        {source: now[source] - before.get(source, 0) for source in now},
        reply.text,
    )


def accepted(port: int) -> dict[str, int]:
    """Accepted tokens so far by what drafted them; llama-server does not tell."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            told = response.read().decode()
    except urllib.error.HTTPError:
        return {}
    return {source: int(float(count)) for source, count in _ACCEPTED.findall(told)}


def commands(args: argparse.Namespace, template: Path) -> dict[str, list[str]]:
    """The command of each server, by the name of its variant."""
    target, draft = map(str, padded_pair(args.quantization))
    common = ["-m", target, "-c", str(CONTEXT), "-t", str(args.threads), "-np", "1"]
    common += [word for each in POSITIONS for word in ("--override-kv", each)]
    common += ["--chat-template-file", str(template)]
    mine = [sys.executable, "-m", "localspec", "serve", *common]
    found = {
        "plain": [*mine, "--draft", "off"],
        "lookup": mine,
        "auto": [*mine, "-md", draft],
    }
    for kind in args.peers:
        pair = ["-md", draft] if "draft" in kind else []
        peer = [str(args.bin / "llama-server"), *common, "--cache-ram", "0", "--spec-type", kind]
        found[f"llama-server {kind}"] = [*peer, *pair]
    return found


def measure(args: argparse.Namespace) -> dict[str, list[Answer]]:
    """The answers of each variant."""
    with ExitStack() as stack:
        template = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tools.jinja"
        template.write_text(TEMPLATE)
        ports = {}
        for name, command in commands(args, template).items():
            ports[name] = stack.enter_context(listening(command))
            print(f"{name} is loaded", file=sys.stderr)
        answers: dict[str, list[Answer]] = {name: [] for name in ports}
        for turn, messages in enumerate(itertools.islice(conversation(), args.turns), start=1):
            for name, port in ports.items():
                found = answer(port, messages, call=bool(turn % 4), tokens=args.tokens)
                answers[name].append(found)
                print(
                    f"turn {turn:2}  {name:32} prompt {found.prompt:5}, {found.ttft:6.2f} s,"
                    f" {found.tokens:4} tokens at {found.speed:6.1f} tok/s",
                    file=sys.stderr,
                )
    return answers


def show(answers: dict[str, list[Answer]]) -> None:
    """Print a row for each variant."""
    print(f"{'':32}   TTFT s  tok/s  auto over it        " + "  ".join(SOURCES))
    for name, each in answers.items():
        ratios = [a.speed / b.speed for a, b in zip(answers["auto"], each, strict=True)]
        ttft = statistics.median(answer.ttft for answer in each)
        speed = statistics.harmonic_mean([answer.speed for answer in each])
        print(
            f"{name:32} {ttft:8.2f} {speed:6.1f}"
            f"  {statistics.geometric_mean(ratios):4.2f} ({span(ratios, 2)})  {shares(each)}"
        )


def shares(answers: list[Answer]) -> str:
    """Shares of tokens by what drafted them; the rest the target said itself."""
    count = sum(answer.tokens for answer in answers)
    if not any(answer.accepted for answer in answers):
        return ""
    found = {name: sum(answer.accepted.get(name, 0) for answer in answers) for name in SOURCES}
    return "  ".join(f"{number / count:{len(name)}.0%}" for name, number in found.items())


def main() -> None:
    """Print progress on stderr, then a table."""
    parser = Parser(__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="folder with llama-server")
    parser.add_argument("--peers", nargs="+", default=PEERS, help="--spec-type of llama-server")
    parser.quantization("Q4_0")
    parser.integers(turns=TURNS, tokens=64, threads=machine.physical_cores())
    parser.output()
    args = parser.parse_args()
    print(conditions(args.threads, args.quantization, f"{args.turns} turns"), flush=True)
    answers = measure(args)
    show(answers)
    write_json(args.output, {name: [*map(asdict, each)] for name, each in answers.items()})


if __name__ == "__main__":
    main()

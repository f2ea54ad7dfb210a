"""A Python script that answers one prompt with this library."""

from collections.abc import Mapping

from localspec.export.facts import Exported, PairFacts, left_out, local_path

# Settings of a pair that `LoadOptions` has by the same name; a draft's own begin with draft_.
_BOTH = ("flash_attention", "cache_type_k", "cache_type_v", "exact")
_TARGET = ("gpu_layers", "cpu_moe_layers", "threads", "threads_batch")
_DRAFT = ("draft_ctx_size", "draft_gpu_layers", "draft_threads")
_LOADED = {name: name for name in (*_BOTH, *_TARGET, *_DRAFT)}

_SCRIPT = '''\
#!/usr/bin/env python3
"""Answers the prompt on the command line: {title}."""

import sys
from pathlib import Path

from localspec import Engine, GenerateOptions, LoadOptions, SamplingParams

TARGET = LoadOptions({target})
DRAFT = {draft}
DRAFT_TOKENS = {length}  # {source}
OPTIONS = GenerateOptions(SamplingParams({sampling}), DRAFT_TOKENS, max_tokens=256)

question = " ".join(sys.argv[1:]) or "Write a function that adds two numbers."
with Engine.load(TARGET, DRAFT{lenient}) as engine:
    prompt = engine.encode_chat([{{"role": "user", "content": question}}])
    for piece in engine.stream(prompt, OPTIONS):
        print(piece, end="", flush=True)
    stats = piece.stats
    report = f"\\n{{stats.accepted}} of {{stats.drafted}} drafted tokens were accepted"
    print(report, file=sys.stderr)
'''


def python_script(facts: PairFacts) -> Exported:
    """The script; its draft length is auto unless a number was given."""
    engine = "A script"
    kept = facts.settings
    target = _options(str(local_path(facts.target, engine)), facts.ctx_size, kept, "")
    draft = f"LoadOptions({_options(str(local_path(facts.draft, engine)), None, kept, 'draft_')})"
    length = facts.length
    text = _SCRIPT.format(
        title=_harmless(facts.title),
        target=target,
        draft="TARGET  # with heads of its own" if facts.own_heads else draft,
        sampling=", ".join(f"{name}={value!r}" for name, value in facts.whole_sampling.items()),
        length=length.tokens if length.given else '"auto"',
        source=length.source if length.given else "as many tokens as pay; or a number",
        lenient=", lenient=True" if kept.get("lenient") else "",
    )
    return Exported(text, left_out(facts, engine, _LOADED, facts.sampling))


def _options(path: str, ctx_size: int | None, kept: Mapping[str, object], prefix: str) -> str:
    """The arguments of one model's `LoadOptions`."""
    named = {name: kept[name] for name in _BOTH if name in kept}
    if ctx_size is not None:
        named["ctx_size"] = ctx_size
    for name in _DRAFT if prefix else _TARGET:
        if name in kept:
            named[name.removeprefix(prefix)] = kept[name]
    return ", ".join([f"Path({path!r})", *(f"{name}={value!r}" for name, value in named.items())])


def _harmless(title: str) -> str:
    """Names of files inside a docstring: without what would end it or begin an escape."""
    return title.replace("\\", "/").replace('"', "'")

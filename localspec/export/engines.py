"""A checked pair for another engine, refused if the engine cannot run it."""

from collections.abc import Callable, Mapping

from localspec.core.errors import IncompatiblePair
from localspec.core.formatting import one_line
from localspec.export.commands import ik_llama, llama_cpp, sglang, vllm
from localspec.export.documents import lm_studio, ollama, python_script
from localspec.export.facts import Exported, PairFacts
from localspec.export.names import DIALECTS, OWN, Dialect

_WRITERS: Mapping[str, Callable[[Dialect, PairFacts], Exported]] = {
    "llama-server": llama_cpp,
    "llama-cli": llama_cpp,
    "ik_llama": ik_llama,
    "vllm": vllm,
    "sglang": sglang,
    "lmstudio": lm_studio,
    "ollama": ollama,
    OWN: python_script,
}
# Settings that each engine has in its own form, or not at all: the check is made here.
_ELSEWHERE = ("draft_tokens", "ctx_size", "lenient")


def export_pair(engine: str, facts: PairFacts) -> Exported:
    """The pair for an engine; raises IncompatiblePair if the engine cannot run it."""
    dialect = DIALECTS[engine]
    if engine != OWN and facts.draft.trimmed is not None:
        raise IncompatiblePair(
            f"No other engine can run {one_line(facts.draft.path.name)}: its vocabulary was "
            "trimmed, and only localspec knows which tokens its output rows are.",
            "Serve the pair with this program: localspec serve, or export the draft that it was "
            "made from.",
        )
    if dialect.vocabulary_rule and not facts.report.llama_cpp_accepts:
        raise IncompatiblePair(
            f"{dialect.label} cannot run this pair: llama.cpp refuses it by its rule "
            f"{facts.report.llama_cpp_rule}, which --lenient only lifts here.",
            "Serve it with this program: localspec serve --lenient, or choose another draft: "
            "localspec suggest TARGET",
        )
    dialect.draft(facts.kind)
    made = _WRITERS[engine](dialect, facts)
    return Exported(made.text, (*made.notes, *_left_out(dialect, facts)), made.executable)


def _left_out(dialect: Dialect, facts: PairFacts) -> tuple[str, ...]:
    """One sentence with the settings of a pair that an engine does not have; none without."""
    names = [
        *(n for n in facts.settings if n not in dialect.settings and n not in _ELSEWHERE),
        *(n for n in facts.sampling if n not in dialect.sampling),
    ]
    if not names:
        return ()
    return (f"Left out, since {dialect.label} has no such setting: {', '.join(names)}.",)

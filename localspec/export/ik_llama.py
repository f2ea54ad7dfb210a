"""ik_llama.cpp: the command of its llama-server, whose --spec-type takes its settings inline."""

from localspec.core.errors import IncompatiblePair
from localspec.export.facts import Exported, PairFacts, left_out, local_path
from localspec.export.llama_cpp import LOADING_FLAGS, SAMPLING_FLAGS, flags_for
from localspec.export.shell import Words, made_by, script

# common/common.cpp and the help of its llama-server, read in November 2026.
VERSION = "ik_llama.cpp (September 2026)"
_TYPES = {"draft-simple": "draft", "draft-mtp": "mtp", "draft-dflash": "dflash"}
_LOADING = LOADING_FLAGS | {"draft_threads": "-td", "draft_ctx_size": "-cd"}
_SAMPLING = SAMPLING_FLAGS | {"typical_p": "--typical"}
del _SAMPLING["dry_sequence_breakers"]  # of a text each character would count


def ik_llama(facts: PairFacts) -> Exported:
    """The command of ik_llama.cpp's llama-server."""
    spec_type = _TYPES.get(facts.kind.spec_type)
    if spec_type is None:
        raise IncompatiblePair(
            f"ik_llama.cpp has no --spec-type for {facts.kind.words} ({facts.kind.spec_type}).",
            f"It knows {', '.join(_TYPES.values())}. llama.cpp runs it: --to llama-server.",
        )
    engine = "ik_llama.cpp"
    command: list[Words] = [["llama-server"], ["-m", str(local_path(facts.target, engine))]]
    if not facts.own_heads:
        command.append(["-md", str(local_path(facts.draft, engine))])
    length = facts.length.tokens
    # Confidence alone must not end a draft: its default would, and the length was learnt without.
    stage = spec_type if length is None else f"{spec_type}:n_max={length},p_min=0.0"
    command += [["--spec-type", stage], ["-c", str(facts.ctx_size)]]
    command += flags_for(facts.settings, _LOADING)
    command += flags_for(facts.sampling, _SAMPLING)
    comments = [
        made_by(facts.title, f"llama-server of {VERSION}"),
        f"Draft length: {facts.length.source}.",
    ]
    notes = [*left_out(facts, engine, _LOADING, _SAMPLING)]
    if "gpu_layers" not in facts.settings:
        notes.append("What goes to a GPU is left to ik_llama.cpp; -ngl 999 -ngld 999 is all.")
    if not facts.report.llama_cpp_accepts:
        notes.append("The vocabularies differ: ik_llama.cpp translates tokens by their text.")
    return Exported(script(comments, command), tuple(notes))

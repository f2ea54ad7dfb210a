"""Each engine's names of drafts, settings and sampling parameters, as of a version."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.core.errors import IncompatiblePair
from localspec.core.options.option import option, options
from localspec.core.options.sampling_params import SamplingParams, sampling_fields
from localspec.metadata.filenames import HEADS

if TYPE_CHECKING:  # the command line imports this
    from localspec.metadata.draft_kind import DraftKind

_PANEL = "Serving on GPUs (vllm, sglang)"
Names = Mapping[str, str]  # ours, of `PairSettings` and SamplingParams, to the engine's


@dataclass(frozen=True, slots=True)
class Repositories:
    """Repositories of the original weights for engines on GPUs; None: as the headers name them."""

    target_repo: str | None = option(
        None,
        "--target-repo",
        "Repository of the target's safetensors. Default: the one that its header names.",
        metavar="ORG/NAME",
        panel=_PANEL,
    )
    draft_repo: str | None = option(
        None, "--draft-repo", "The same for the draft.", metavar="ORG/NAME", panel=_PANEL
    )


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one engine; ``label`` is its own in a sentence.

    ``drafts`` are its names of llama.cpp's --spec-type, None if they are the same.
    with ``vocabulary_rule`` it refuses the pairs that llama.cpp's own check refuses,
    with ``on_gpus`` it serves the original weights (safetensors) on GPUs.
    """

    label: str
    version: str
    drafts: Names | None
    settings: Names
    sampling: Names
    vocabulary_rule: bool = False
    on_gpus: bool = False

    def draft(self, kind: "DraftKind") -> str:
        """Its name of a kind of draft; raises IncompatiblePair for one that it cannot run."""
        if self.drafts is None:
            return kind.spec_type
        if kind.spec_type in self.drafts and not kind.selected:  # only llama.cpp knows DFlash2
            return self.drafts[kind.spec_type]
        words = "an ordinary draft model" if kind.is_model else kind.words
        raise IncompatiblePair(
            f"{self.label} cannot run this pair: it cannot draft with {words} ({kind.spec_type}).",
            "llama.cpp can: --to llama-server",
        )


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_KINDS = ("draft-simple", *(f"draft-{kind}" for kind in HEADS))

# common/arg.cpp of the llama.cpp inside llama-cpp-python 0.3.36.
_LLAMA_CPP = "llama.cpp 0c1e570 (October 2026)"
_LLAMA_SETTINGS = {
    "draft_tokens": "--spec-draft-n-max",
    "ctx_size": "-c",
    "gpu_layers": "-ngl",
    "draft_gpu_layers": "-ngld",
    "cpu_moe_layers": "--n-cpu-moe",
    "threads": "-t",
    "threads_batch": "-tb",
    "draft_threads": "--spec-draft-threads",
    "flash_attention": "-fa",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "draft_cache_type_k": "-ctkd",
    "draft_cache_type_v": "-ctvd",
}
_LLAMA_SAMPLING = {
    name: row.flags[0] for name, row in options(SamplingParams).items() if row.llama_cpp
}

# common/common.cpp and the help of ik_llama.cpp's llama-server, read in November 2026. The length
# stands in its --spec-type; --dry-sequence-breaker takes each character of a text as one.
_IK_SETTINGS = _LLAMA_SETTINGS | {"draft_threads": "-td", "draft_ctx_size": "-cd"}
_IK_SAMPLING = _LLAMA_SAMPLING | {"typical_p": "--typical"}
for _name in ("draft_tokens", "draft_cache_type_k", "draft_cache_type_v"):
    del _IK_SETTINGS[_name]
del _IK_SAMPLING["dry_sequence_breakers"]

_GENERATION_CONFIG = {  # generation_config.json of Hugging Face
    **_same("temperature", "top_k", "top_p", "min_p"),
    "repeat_penalty": "repetition_penalty",
}

# packages/lms-kv-config of lmstudio-ai/lmstudio-js, read in November 2026.
LM_STUDIO_SPEC = "llama.speculativeDecoding."
_LM_STUDIO_SAMPLING = {
    "temperature": "temperature",
    "top_k": "topKSampling",
    "top_p": "topPSampling",
    "min_p": "minPSampling",
    "repeat_penalty": "repeatPenalty",
    "seed": "seed",
    "presence_penalty": "llama.presencePenalty",
    "frequency_penalty": "llama.frequencyPenalty",
    "xtc_probability": "llama.xtcProbability",
    "xtc_threshold": "llama.xtcThreshold",
}

OWN = "python"  # a script that uses this library

DIALECTS: Mapping[str, Dialect] = {
    **{
        program: Dialect(
            program,
            f"{program} of {_LLAMA_CPP}",
            None,
            _LLAMA_SETTINGS,
            _LLAMA_SAMPLING,
            vocabulary_rule=True,
        )
        for program in ("llama-server", "llama-cli")
    },
    "ik_llama": Dialect(
        "ik_llama.cpp",
        "llama-server of ik_llama.cpp (September 2026)",
        {"draft-simple": "draft", "draft-mtp": "mtp", "draft-dflash": "dflash"},
        _IK_SETTINGS,
        _IK_SAMPLING,
    ),
    # Its own parser took these arguments: 0.33.0, November 2026.
    "vllm": Dialect(
        "vLLM",
        "vLLM 0.33",
        dict(zip(_KINDS, ("draft_model", "mtp", "eagle3", "dflash"), strict=False)),
        {},
        _GENERATION_CONFIG,
        on_gpus=True,
    ),
    # Its own parser took these arguments: 0.5.23, November 2026.
    "sglang": Dialect(
        "SGLang",
        "SGLang 0.5.23",
        dict(zip(_KINDS, ("STANDALONE", "NEXTN", "EAGLE3", "DFLASH"), strict=False)),
        {},
        _GENERATION_CONFIG | _same("presence_penalty", "frequency_penalty"),
        on_gpus=True,
    ),
    "lmstudio": Dialect(
        "LM Studio",
        "LM Studio (November 2026)",
        {
            "draft-simple": "draftSimple",
            "draft-mtp": "draftMtp",
            "draft-dflash": "draftDflashSidecar",
            "draft-dspark": "draftDsparkSidecar",
        },
        {"ctx_size": "contextLength", "draft_tokens": f"{LM_STUDIO_SPEC}draftMaxTokens"},
        _LM_STUDIO_SAMPLING,
        vocabulary_rule=True,
    ),
    # parser/parser.go, docs/modelfile.mdx and llm/llama_server.go of ollama/ollama. Its DRAFT takes
    # every file but DFlash for MTP heads, an ordinary draft too.
    "ollama": Dialect(
        "Ollama",
        "Ollama (read in November 2026)",
        _same("draft-mtp", "draft-dflash"),
        {
            "draft_tokens": "draft_num_predict",
            "ctx_size": "num_ctx",
            "gpu_layers": "num_gpu",
            "threads": "num_thread",
        },
        _same(
            *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty"),
            *("repeat_last_n", "presence_penalty", "frequency_penalty", "seed"),
        ),
        vocabulary_rule=True,
    ),
    OWN: Dialect(
        "A script",
        "this library",
        None,
        _same(
            *("flash_attention", "cache_type_k", "cache_type_v", "exact", "gpu_layers"),
            *("cpu_moe_layers", "threads", "threads_batch"),
            *("draft_ctx_size", "draft_gpu_layers", "draft_threads"),
            *("draft_cache_type_k", "draft_cache_type_v"),
        ),
        _same(*sampling_fields()),
    ),
}

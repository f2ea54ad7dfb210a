"""Flags for how a token is chosen."""

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from localspec.commands.flags.groups import choice
from localspec.core.sampling_choice import unescaped
from localspec.core.sampling_params import ACCEPTANCE_RULES

_SAMPLING, _PENALTIES, _DRAFTING = "Sampling", "Penalties and biases", "Drafting"


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """How a token is chosen; None leaves it to the model's recommendation or the default."""

    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            "--temp",
            help="Temperature; 0 is greedy. Default 0.8.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            "-s",
            help="Its text is the same with any draft length, except with --acceptance rejection. "
            "Default, and -1: random.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            help="Keep the K likeliest tokens; 0 or below: off. Default 40.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            help="Keep the likeliest tokens of this total probability; 1: off. Default 0.95.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p",
            help="Keep tokens of at least this share of the best one's probability; 0: off. "
            "Default 0.05.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    typical_p: Annotated[
        float | None,
        typer.Option(
            "--typical-p",
            "--typical",
            help="Keep the tokens whose surprise is nearest to the entropy, of this total "
            "probability; 1: off, the default.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    top_n_sigma: Annotated[
        float | None,
        typer.Option(
            "--top-n-sigma",
            "--top-nsigma",
            help="Keep tokens within this many standard deviations of the best logit; -1: off, "
            "the default.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    xtc_probability: Annotated[
        float | None,
        typer.Option(
            "--xtc-probability",
            help="Chance that XTC leaves out the likeliest tokens but the last above its "
            "threshold; 0: off, the default.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    xtc_threshold: Annotated[
        float | None,
        typer.Option(
            "--xtc-threshold",
            help="Probability from which XTC leaves a token out; above 0.5: off. Default 0.1.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    dynatemp_range: Annotated[
        float | None,
        typer.Option(
            "--dynatemp-range",
            help="Dynamic temperature: up to so much lower or higher, by the entropy; 0: off, "
            "the default.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    dynatemp_exp: Annotated[
        float | None,
        typer.Option(
            "--dynatemp-exp",
            help="Exponent of the entropy in dynamic temperature. Default 1.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        typer.Option(
            "--repeat-penalty",
            help="Divides the logits of recent tokens; 1: off, the default.",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        typer.Option(
            "--repeat-last-n",
            help="Tokens these penalties look back; -1: all. Default 64.",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            "--presence-penalty",
            help="Subtracted from the logits of recent tokens; 0: off, the default.",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            "--frequency-penalty",
            help="Subtracted for each time a recent token occurred; 0: off, the default.",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    dry_multiplier: Annotated[
        float | None,
        typer.Option(
            "--dry-multiplier",
            help="DRY, a penalty of tokens that extend a repetition: its factor; 0: off, the "
            "default.",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    dry_base: Annotated[
        float | None,
        typer.Option(
            "--dry-base",
            help="DRY grows by this factor with each repeated token. Default 1.75.",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    dry_allowed_length: Annotated[
        int | None,
        typer.Option(
            "--dry-allowed-length",
            help="Repeated tokens that DRY allows. Default 2.",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    dry_penalty_last_n: Annotated[
        int | None,
        typer.Option(
            "--dry-penalty-last-n",
            help="Tokens DRY looks back; 0: off. Default 64.",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        typer.Option(
            "--dry-sequence-breaker",
            help="Text that no repetition of DRY reaches across, instead of newline, colon, "
            "quote and asterisk; may be repeated; none: no breakers.",
            metavar="TEXT",
            parser=unescaped,
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias",
            "-l",
            help="Add to the logit of a token: 15043+1, 15043-1 or 15043-inf; may be repeated.",
            metavar="ID+BIAS|ID-BIAS",
            rich_help_panel=_PENALTIES,
        ),
    ] = None
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Never pick a token that ends the answer.",
            rich_help_panel=_PENALTIES,
        ),
    ] = False
    acceptance: Annotated[
        str | None,
        typer.Option(
            "--acceptance",
            parser=choice(*ACCEPTANCE_RULES),
            metavar="|".join(ACCEPTANCE_RULES),
            help="Which drafted tokens are accepted. coupled, the default: target and draft sample "
            "with the same noise. match: the draft's likeliest, if the target samples it. "
            "rejection: the p/q test; the text for a seed then depends on the draft, whose length "
            "must be a number. All rules keep the target's distribution.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None

    def given(self) -> dict[str, object]:
        """Flag values by the names of SamplingParams, None where a flag was left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: None if value is False else value for name, value in values.items()}

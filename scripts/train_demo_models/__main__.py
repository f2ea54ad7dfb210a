"""The command line: runs the stages of making the demo models in their order."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch

from scripts.train_demo_models.evaluation import evaluate
from scripts.train_demo_models.export import export_pair
from scripts.train_demo_models.hybrid.evaluation import evaluate_hybrid
from scripts.train_demo_models.hybrid.export import publish_hybrid
from scripts.train_demo_models.hybrid.training import train_hybrid
from scripts.train_demo_models.text.corpus import build_corpus
from scripts.train_demo_models.training import TrainingPlan, train_draft, train_target

PROGRAM = "python -m scripts.train_demo_models"
DESCRIPTION = """\
Train the demo models: two tiny Llama models and a hybrid that share one tokenizer.

The target (about 8.9 M weights) learns from the Python standard library's own source, its tests and
the language reference, as found on the machine that runs this script: from the files themselves
and from short chat turns made of docstrings, code and reference. The draft (about 1.2 M weights)
is distilled from the target. The hybrid (about 8.6 M weights: delta nets, full attention and an
MTP head, as in Qwen3.5) learns from the published target and the text. Whole packages are held out
for the evaluation. The result are toys: they show speculative decoding at work, and know nothing
beyond that text.

Stages: corpus, target, draft, export, evaluate, hybrid, hybrid-export, hybrid-evaluate. Without a
stage, all of them run in this order. The hybrid's need only the published pair, so they can run
alone; `evaluate` describes a new pair and drops what was said of the hybrid.
Training writes checkpoints and resumes from them, also after Ctrl-C or a SIGTERM, and every stage
can be run again by itself.
Needs torch, tokenizers, gguf and numpy.
"""

STAGES: dict[str, Callable[[argparse.Namespace], None]] = {
    "corpus": lambda args: build_corpus(args.work_dir, args.seed),
    "target": lambda args: train_target(_training_plan(args, args.target_minutes)),
    "draft": lambda args: train_draft(_training_plan(args, args.draft_minutes)),
    "export": lambda args: export_pair(args.work_dir, args.out_dir),
    "evaluate": lambda args: evaluate(
        args.work_dir, args.out_dir, args.seed, args.threads, _command(args)
    ),
    "hybrid": lambda args: train_hybrid(_training_plan(args, args.hybrid_minutes), args.out_dir),
    "hybrid-export": lambda args: publish_hybrid(args.work_dir, args.out_dir),
    "hybrid-evaluate": lambda args: evaluate_hybrid(
        args.work_dir, args.out_dir, args.seed, args.threads
    ),
}


def main() -> None:
    """Run the stages asked for, in their order."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    for stage, run in STAGES.items():
        if not args.stages or stage in args.stages:
            run(args)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stages = f"any of: {', '.join(STAGES)} (default: all)"
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=stages)
    _add_folders(parser)
    _add_training_options(parser)
    args = parser.parse_args()
    if unknown := set(args.stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    return args


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--work-dir",
        "--data-dir",
        type=Path,
        default=_default_work_dir(),
        metavar="FOLDER",
        help="corpus, checkpoints and loss curves (default: a cache folder)",
    )
    parser.add_argument(
        "--out-dir",
        type=Path,
        default=Path("models/demo"),
        metavar="FOLDER",
        help="where the GGUF files and the report go (default: %(default)s)",
    )


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    for name, minutes in (("target", 65.0), ("draft", 20.0), ("hybrid", 63.0)):
        parser.add_argument(
            f"--{name}-minutes",
            type=float,
            default=minutes,
            metavar="MINUTES",
            help=f"time to train the {name} (default: %(default)g)",
        )
    seed_help = "for texts, weights and batches (default: 1)"
    parser.add_argument("--seed", type=int, default=1, help=seed_help)
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default: 2)")
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=4096,
        metavar="N",
        help="tokens in one update, a multiple of 2048 (default: %(default)s)",
    )


def _default_work_dir() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "localspec" / "demo-models"


def _training_plan(args: argparse.Namespace, minutes: float) -> TrainingPlan:
    return TrainingPlan(args.work_dir, minutes, args.batch_tokens, args.seed)


def _command(args: argparse.Namespace) -> str:
    """The command that makes these models, without folders."""
    return (
        f"{PROGRAM} --target-minutes {args.target_minutes:g} "
        f"--draft-minutes {args.draft_minutes:g} --hybrid-minutes {args.hybrid_minutes:g} "
        f"--seed {args.seed}"
    )


if __name__ == "__main__":
    main()

"""The child process of `first_use`: loads a pair, uses it in every way, and measures it."""

import json
import math
import sys

from localspec.core import machine, worker
from localspec.core.compute import COMPUTE
from localspec.core.errors import LocalspecError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens, LoadOptions, load_options
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.loading.first_use import shown
from localspec.engine.loading.pair import Draft, load_draft, load_target
from localspec.engine.loading.pair_file import ModelFile, PairFile
from localspec.llama import llama_library
from localspec.llama.heads.head import Head
from localspec.llama.memory.probe import limit_memory
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.tokenizer import SHORT, tokenize
from localspec.llama.vocabulary.trimmed import open_draft_model
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import read_header
from localspec.speculative.loop import DraftStatus
from localspec.speculative.sampling.row import require_number

_WIDE = 9  # tokens of a pass
_TEXT = "Hello, world! 1 + 1 = 2.\n"
# Every kind of byte that UTF-8 has, and words of many scripts.
_CHARACTERS = "".join(map(chr, [*range(1, 0x800), *range(0x800, 0xD800, 64), 0x1F600, 0x10FFFF]))
_LENGTHS: tuple[DraftTokens, ...] = (0, 4, "auto")
_PROMPT, _TOKENS = 40, 24  # of each answer
_GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def _say(message: object) -> None:
    """Write a step (text), an error (list) or the results (object) as a line of JSON."""
    print(json.dumps(message), flush=True)


def _answer() -> None:
    """Read the request; write each step, then the results."""
    asked = worker.question()
    options = [load_options(each) for each in asked["models"]]
    llama_library.log.verbose = True
    free = (machine.memory() or (sys.maxsize, 0))[0]
    limit_memory(min(free, asked["bytes"]))
    try:
        with COMPUTE.adopted():
            _say(_use(options, measures=asked["measures"], answers=asked["answers"]))
    except LocalspecError as problem:
        _say([type(problem).__name__, problem.message, problem.hint])


def _use(options: list[LoadOptions], *, measures: bool, answers: bool) -> dict[str, object]:
    """Load and use these models; the parts of the pair file that were measured."""
    file = PairFile()
    _say(f"loads {shown(options[0])}")
    target = ModelFile(read_header(options[0].path, options[0].override_kv), options[0])
    if target.header.trimmed is not None:
        _use_model(open_draft_model(*target), options[0])
        return {}
    model = load_target(target, drafted=len(options) > 1)
    _use_model(model, options[0])
    draft = _load(model, options[1]) if len(options) > 1 else None
    if isinstance(draft, LlamaModel):
        _use_model(draft, options[1])
    with Engine(model, draft, file=file) as engine:
        if isinstance(draft, Head):
            _say(f"drafts with the prediction heads of {shown(options[1])}")
            _generate(engine, _WIDE - 1)
        if measures:
            _say(f"measures {shown(options[0])}")
            engine.profile.introduce(lambda sentence: None)
        for length in _LENGTHS if answers else ():
            drafted = length if engine.can_roll_back and draft is not None else 0
            _say(f"answers with {shown(options[0])}")
            _generate(engine, drafted)
        if answers and model.options.parallel == 1:
            tokens, state = list(model.tokens), model.state()
            model.restore(tokens, state)
    return file.parts


def _load(target: LlamaModel, options: LoadOptions) -> Draft:
    header = read_header(options.path, options.override_kv)
    is_model = not options.load_heads and draft_kind(header).is_model
    _say(f"loads {'' if is_model else 'the prediction heads of '}{shown(options)}")
    return load_draft(target, ModelFile(header, options), [])


def _use_model(model: LlamaModel, options: LoadOptions) -> None:
    """Tokenize, and decode passes whose logits must be numbers; the cache is left empty."""
    vocab = model.header.vocab
    if vocab is not None and vocab.type != "NONE":
        _say(f"tokenizes with {shown(options)}")
        _use_vocabulary(model)
    _say(f"decodes with {shown(options)}")
    tokens = [(7919 * i + 1) % model.n_vocab for i in range(min(1 + _WIDE, model.n_ctx))]
    for rows in model.decode(tokens[:1], 1).copy(), model.decode(tokens[1:], len(tokens) - 1):
        for row in rows:
            model.require_numbers(row)
    model.truncate(0)


def _use_vocabulary(model: LlamaModel) -> None:
    """Tokenize a short text and a long one, and write every token."""
    llama = llama_library.library()
    longer = _CHARACTERS + _TEXT * (2 * SHORT // len(_TEXT))
    for text in (_TEXT, longer):
        for special in (True, False):
            tokenize(llama, model.vocab, text, add_special=special, special=special)
    for token in range(model.n_vocab):
        model.piece(token)


def _generate(engine: Engine, length: DraftTokens) -> None:
    """An answer in each slot; raises NotNumbers also if the draft's logits are not numbers."""
    target = engine.target
    prompt = [(7919 * i + 1) % target.n_vocab for i in range(min(_PROMPT, target.n_ctx // 2))]
    options = GenerateOptions(_GREEDY, length, max_tokens=_TOKENS)
    for stream in [engine.stream(prompt, options) for _ in range(target.options.parallel)]:
        for piece in stream:
            if piece.status is DraftStatus.DRAFT_NOT_NUMBERS:
                require_number(math.nan)


if __name__ == "__main__":
    _answer()

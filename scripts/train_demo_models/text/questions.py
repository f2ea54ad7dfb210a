"""Chat documents made by fixed rules from docstrings, source code and the language reference."""

import random
from collections.abc import Iterator

from scripts.train_demo_models.text.sources import Definition
from scripts.train_demo_models.text.tokenizer import END, TURN

SYSTEM_MESSAGE = "You are a helpful assistant."
MAX_ANSWER_CHARACTERS = 1600
MAX_SIGNATURE_CHARACTERS = 300

Turn = tuple[str, str]  # question and answer

SUMMARY_QUESTIONS = (
    "What does {name} do?",
    "What is {name} for?",
    "Describe {name} briefly.",
    "Summarise {name} in a few words.",
    "In short, what is {name}?",
)
DOC_QUESTIONS = (
    "Explain the {kind} {name}.",
    "Tell me about {name}.",
    "How do I use {name}?",
    "Show me the documentation of {name}.",
    "What should I know about the {kind} {name}?",
)
SOURCE_QUESTIONS = (
    "Show me the source of {name}.",
    "How is {name} implemented?",
    "Give me the code of {name}.",
    "Write out the {kind} {name}.",
    "What does the source of {name} look like?",
)
SIGNATURE_QUESTIONS = (
    "What arguments does {name} take?",
    "What is the signature of {name}?",
    "How do I call {name}?",
    "Which parameters has {name}?",
)
MODULE_QUESTIONS = (
    "Which module has {short}?",
    "Where is the {kind} {short} defined?",
    "In which module do I find {short}?",
)
WRITE_QUESTIONS = (
    "Write a Python {kind} {short}. {summary}",
    "Write a {kind} named {short}: {summary}",
    "{summary} Write that as a Python {kind} called {short}.",
)
REFERENCE_QUESTIONS = (
    "Explain this part of the language: {subject}.",
    "Tell me about {subject}.",
    "What does Python's reference say on {subject}?",
)


def definition_chats(rng: random.Random, definition: Definition) -> Iterator[str]:
    """Yield chat documents about one definition: most of one turn, some of two or three."""
    turns = _definition_turns(rng, definition)
    while turns:
        count = rng.choice((1, 1, 1, 2, 3))
        yield _chat_text(rng, turns[:count])
        turns = turns[count:]


def reference_chats(rng: random.Random, topics: dict[str, str]) -> Iterator[str]:
    """Yield chat documents about the topics of the language reference, of one turn each."""
    for name, text in topics.items():
        for turn in _reference_turns(rng, name, text):
            yield _chat_text(rng, [turn])


def question_sample(rng: random.Random, definitions: list[Definition], count: int) -> list[str]:
    """Draw questions for the evaluation, each about another documented definition."""
    usable = [
        definition
        for definition in definitions
        if definition.doc and 0 < len(definition.source) <= MAX_ANSWER_CHARACTERS
    ]
    phrasings = (SUMMARY_QUESTIONS, DOC_QUESTIONS, SOURCE_QUESTIONS, WRITE_QUESTIONS)
    return [
        _question(rng, phrasings[i % len(phrasings)], definition)
        for i, definition in enumerate(rng.sample(usable, count))
    ]


def prompt_text(question: str) -> str:
    """A question in the chat template, up to where the answer begins."""
    return f"{TURN}user\n{question}{END}\n{TURN}assistant\n"


def _chat_text(rng: random.Random, turns: list[Turn]) -> str:
    """Write turns in the chat template, some with a system message."""
    text = f"{TURN}system\n{SYSTEM_MESSAGE}{END}\n" if rng.random() < 0.2 else ""
    for question, answer in turns:
        text += f"{prompt_text(question)}{answer}{END}\n"
    return text


def _question(rng: random.Random, phrasings: tuple[str, ...], definition: Definition) -> str:
    """Pick a phrasing and a spelling of the name."""
    name, kind = definition.name, definition.kind
    spellings = [name, name, f"`{name}`"]
    if kind in ("function", "method"):
        spellings.append(f"{name}()")
    summary = definition.doc.split("\n\n")[0].replace("\n", " ")
    return rng.choice(phrasings).format(
        name=rng.choice(spellings), short=definition.short_name, kind=kind, summary=summary
    )


def _definition_turns(rng: random.Random, definition: Definition) -> list[Turn]:
    """The questions about a definition with their answers, in random order."""
    turns = list(_doc_turns(rng, definition)) if definition.doc else []
    if definition.source and (definition.doc or rng.random() < 0.4):
        turns += _source_turns(rng, definition)
        turns += _signature_turns(rng, definition)
        turns += _module_turns(rng, definition)
    rng.shuffle(turns)
    return turns


def _doc_turns(rng: random.Random, definition: Definition) -> Iterator[Turn]:
    """Yield questions that the docstring answers."""
    first = definition.doc.split("\n\n")[0]
    yield _question(rng, SUMMARY_QUESTIONS, definition), first[:MAX_ANSWER_CHARACTERS]
    if len(definition.doc) <= MAX_ANSWER_CHARACTERS:
        about = _introduction(rng, definition)
        yield _question(rng, DOC_QUESTIONS, definition), about + definition.doc


def _introduction(rng: random.Random, definition: Definition) -> str:
    """For half of the functions and classes, a sentence on where they belong."""
    if definition.kind == "module" or rng.random() < 0.5:
        return ""
    return f"`{definition.name}` is a {definition.kind} of the module `{definition.module}`.\n\n"


def _source_turns(rng: random.Random, definition: Definition) -> Iterator[Turn]:
    """Yield questions that the source answers."""
    if len(definition.source) <= MAX_ANSWER_CHARACTERS:
        answer = _code_block(definition.source)
        yield _question(rng, SOURCE_QUESTIONS, definition), answer
        if definition.doc and rng.random() < 0.5:
            yield _question(rng, WRITE_QUESTIONS, definition), answer


def _signature_turns(rng: random.Random, definition: Definition) -> Iterator[Turn]:
    """Yield a question that the signature answers."""
    if definition.signature and len(definition.signature) <= MAX_SIGNATURE_CHARACTERS:
        call = _code_block(f"{definition.short_name}{definition.signature}")
        yield _question(rng, SIGNATURE_QUESTIONS, definition), f"Call it like this:\n\n{call}"


def _module_turns(rng: random.Random, definition: Definition) -> Iterator[Turn]:
    """Yield, for some definitions, a question that the module's name answers."""
    if rng.random() < 0.3:
        kind, name, module = definition.kind, definition.short_name, definition.module
        answer = f"The {kind} `{name}` is in the module `{module}`."
        yield _question(rng, MODULE_QUESTIONS, definition), answer


def _code_block(source: str) -> str:
    return f"```python\n{source}\n```"


def _reference_turns(rng: random.Random, name: str, text: str) -> Iterator[Turn]:
    """Yield questions that a section of the reference answers with its first paragraphs."""
    title = text.split("\n")[0]
    subject = title if title.startswith("The ") else rng.choice((title, f'"{name}" in Python'))
    paragraphs = [part for part in text.split("\n\n")[1:] if part[:1].isupper()]
    answers = [*paragraphs[:1], "\n\n".join(paragraphs[:3]), "\n\n".join(paragraphs[:6])]
    for answer in dict.fromkeys(answers):
        if 0 < len(answer) <= MAX_ANSWER_CHARACTERS:
            yield rng.choice(REFERENCE_QUESTIONS).format(subject=subject), answer

"""Errors that the user can mend: each a sentence and a hint; the command line prints them.

Anything else that is raised is a bug and keeps its traceback.

    LocalspecError
    ├── FileProblem         a path that names no readable file
    │   └── NotAGGUF        a file whose GGUF header cannot be trusted
    ├── IncompatiblePair    a draft that is not compatible with its target
    ├── DraftNotMade        a draft that cannot be made out of its target
    ├── EngineError         llama.cpp refused to load or to decode
    ├── NotEnoughMemory     what was asked for does not fit this machine
    ├── HubProblem          the Hub has no such model, or does not hand it out
    ├── DownloadProblem     a file that could not be fetched, or is not what was recorded
    ├── UnknownPair         a name that no pair has
    ├── TemplateError       a chat template that does not render
    ├── GrammarError        a grammar or JSON schema that cannot be obeyed
    ├── PromptTooLong       a prompt that leaves no room in the context
    └── UsageError          options that contradict each other (exit code 2)
"""


class LocalspecError(Exception):
    """A problem the user can mend: one clear sentence, and what to try next."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class FileProblem(LocalspecError):
    """A path that does not lead to a readable file."""


class NotAGGUF(FileProblem):
    """A file that is not a GGUF model, or whose header is damaged or absurd."""


class IncompatiblePair(LocalspecError):
    """The draft cannot be used with this target."""


class DraftNotMade(LocalspecError):
    """No draft of this kind can be made out of the target."""


class EngineError(LocalspecError):
    """llama.cpp refused to load a model or to decode."""


class NotEnoughMemory(LocalspecError):
    """What was asked for does not fit into this machine's memory."""


class HubProblem(LocalspecError):
    """The Hub cannot be reached, has no such model, or does not hand it out."""


class DownloadProblem(LocalspecError):
    """A file could not be fetched, or differs from what was recorded."""


class UnknownPair(LocalspecError):
    """No pair of this name is known."""


class TemplateError(LocalspecError):
    """The chat template in the GGUF file cannot be rendered."""


class GrammarError(LocalspecError):
    """A grammar or JSON schema that cannot be read, or that no answer can obey."""


class PromptTooLong(LocalspecError):
    """The prompt does not fit into the context."""


class UsageError(LocalspecError):
    """Options that contradict each other or make no sense."""

    exit_code = 2

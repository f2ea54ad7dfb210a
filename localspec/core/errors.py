"""Errors that the user can fix, printed by the command line; others keep their traceback."""


class LocalspecError(Exception):
    """A problem that the user can fix: one clear sentence, and what to try next."""

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
    """No draft of this kind can be made from the target."""


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


class TemplateLimitExceeded(LocalspecError):
    """A chat template took more time or memory than rendering may take."""


class GrammarError(LocalspecError):
    """A grammar or JSON schema that is invalid, or that no answer can satisfy."""


class WorkerLost(LocalspecError):
    """A child process ended for a reason outside the request; another try may succeed."""


class PromptTooLong(LocalspecError):
    """The prompt does not fit into the context; the tokens of both, where they are known."""

    def __init__(
        self, message: str, hint: str = "", *, n_prompt: int | None = None, n_ctx: int | None = None
    ) -> None:
        super().__init__(message, hint)
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class UsageError(LocalspecError):
    """Options that contradict each other or are invalid; exit code 2."""

    exit_code = 2

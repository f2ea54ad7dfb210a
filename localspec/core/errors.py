"""Errors that the user can fix, printed by the command line; others keep their traceback.

Each is also the built-in error that a caller of the library would catch. So code that turns a
built-in error into one of these lets a `LocalspecError` pass first.
"""


class LocalspecError(Exception):
    """A problem that the user can fix: one clear sentence, and what to try next."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class FileProblem(LocalspecError, OSError):
    """A path that does not lead to a readable file."""


class MissingFile(FileProblem, FileNotFoundError):
    """A path, or a model's name, without a file."""


class NotAGGUF(FileProblem, ValueError):
    """A file that is not a GGUF model, or whose header is damaged or absurd."""


class IncompatiblePair(LocalspecError, ValueError):
    """The draft cannot be used with this target."""


class DraftNotMade(LocalspecError, ValueError):
    """No draft of this kind can be made from the target."""


class EngineError(LocalspecError, RuntimeError):
    """llama.cpp refused to load a model or to decode."""


class NotNumbers(EngineError):
    """A model's logits after a text are not numbers, so that no token can be chosen."""


class NotEnoughMemory(LocalspecError, MemoryError):
    """The requested work does not fit into this machine's memory."""


class HubProblem(LocalspecError, OSError):
    """The Hub cannot be reached, has no such model, or denies access to it."""


class DownloadProblem(LocalspecError, OSError):
    """A file could not be fetched, or differs from its record."""


class UnknownPair(LocalspecError, FileNotFoundError):
    """No pair of this name is known."""


class TemplateError(LocalspecError, ValueError):
    """The chat template in the GGUF file cannot be rendered."""


class TemplateLimitExceeded(LocalspecError, ValueError):
    """A chat template took more time or memory than rendering may take."""


class GrammarError(LocalspecError, ValueError):
    """A grammar or JSON schema that is invalid, or that no answer can satisfy."""


class WorkerLost(LocalspecError, RuntimeError):
    """A child process ended for a reason outside the request; another try may succeed."""


class PromptTooLong(LocalspecError, ValueError):
    """The prompt does not fit into the context; with the tokens of both, if they are known."""

    def __init__(
        self, message: str, hint: str = "", *, n_prompt: int | None = None, n_ctx: int | None = None
    ) -> None:
        super().__init__(message, hint)
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class UsageError(LocalspecError, ValueError):
    """Options that contradict each other or are invalid; exit code 2."""

    exit_code = 2


class ModelClosed(UsageError):
    """The model was closed before the request, or while it was answered."""

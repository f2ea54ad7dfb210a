"""Names of options in Python: flags in sentences, and what other libraries call them."""

import pytest

from localspec.core.errors import UsageError
from localspec.core.options.names import in_python, reword, unknown_option


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Try a smaller --ctx-size.", "Try a smaller ctx_size."),
        ("What fits is --ctx-size 4096.", "What fits is ctx_size=4096."),
        ("Run plain: --draft off.", 'Run plain: draft="off".'),
        ("Or --draft FILE.gguf, if any.", 'Or draft="FILE.gguf", if any.'),
        ("Read it: --no-mmap.", "Read it: mmap=False."),
        ("See the log with --verbose.", "See the log with verbose=True."),
        ("Fetch it: localspec download --yes x.", "Fetch it: localspec download --yes x."),
        ("Ask it by `run --raw`.", "Ask it by `run --raw`."),
        ("Use pip install --force-reinstall.", "Use pip install --force-reinstall."),
    ],
)
def test_flags_in_a_sentence_become_arguments(text: str, expected: str) -> None:
    assert in_python(text) == expected
    assert in_python(expected) == expected


def test_a_reworded_error_shows_its_hint_once() -> None:
    error = UsageError("--draft 4 is too much.", "Try --draft 2.")
    reword(error)
    reword(error)
    assert (str(error), error.message, error.hint) == (error.message, "draft=4 is too much.",
                                                       "Try draft=2.")  # fmt: skip
    assert error.__notes__ == ["Try draft=2."]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n_ctx", "It is ctx_size here."),
        ("n_gpu_layers", "It is gpu_layers here."),
        ("temp", "It is an option of there: temperature."),
        ("ctx_sise", "Did you mean ctx_size? Options are: ctx_size, gpu_layers."),
        ("zzz", "Options are: ctx_size, gpu_layers."),
    ],
)
def test_another_name_is_answered_with_ours(name: str, hint: str) -> None:
    error = unknown_option(name, {"ctx_size", "gpu_layers"}, "there", {"temperature"})
    assert (error.message, error.hint) == (f"There is no option {name}.", hint)

"""Names that the shell completes; nothing is loaded and no network is used."""

from localspec.core.errors import LocalspecError


def own_pairs() -> list[str]:
    """The user's own pairs."""
    from localspec.library.pairs import user_pairs

    return user_pairs.names()


def pairs() -> list[str]:
    """All pairs: the bundled one, the user's own and the known ones."""
    from localspec.library.pairs.catalog import load_catalog
    from localspec.library.pairs.user_pairs import BUNDLED

    return [BUNDLED, *own_pairs(), *(pair.name for pair in load_catalog())]


def models() -> list[str]:
    """Pairs, then the models on this disk and the repositories on the Hub that they came from."""
    from localspec.library.local_models import find_models

    try:
        files = find_models().files
    except LocalspecError:  # which the command itself will report
        files = ()
    local = [name for model in files for name in (model.name, model.repo) if name]
    return list(dict.fromkeys((*pairs(), *local)))


def drafts() -> list[str]:
    """Completions of --draft: words, pairs and models."""
    from localspec.library.pairs.user_pairs import DRAFT_WORDS

    return [*DRAFT_WORDS, *models()]


def conversations() -> list[str]:
    """Saved conversations."""
    from localspec.chat.conversation_store import stored

    return [saved.name for saved in stored(lambda problem: None)]

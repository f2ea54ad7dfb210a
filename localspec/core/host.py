"""The program that this library runs in, and a Python for child processes."""

import os
import re
import shlex
import shutil
import sys
from contextlib import suppress
from importlib.util import find_spec

from localspec.core.errors import UsageError
from localspec.core.paths import CHECKOUT

VARIABLE = "LOCALSPEC_PYTHON"
# An app that is started as if it were Python starts its own children so, without end.
_INTERPRETER = re.compile(r"python|pypy|graalpy|hython|mayapy", re.IGNORECASE)


def interpreter() -> str:
    """The Python that runs children; raises UsageError where none is known."""
    if named := os.environ.get(VARIABLE):
        if (found := shutil.which(named)) is None:
            raise UsageError(f"{VARIABLE} is {named}: there is no such program.", _hint())
        return found
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    embedded = os.path.join("bin", version), "python.exe"  # of an app that embeds Python
    own = [sys.executable or "", *(os.path.join(sys.exec_prefix, each) for each in embedded)]
    for path in [] if _is_frozen() else own:
        if _INTERPRETER.search(os.path.basename(path)) and os.path.isfile(path):
            return path
    raise UsageError(
        f"There is no Python to start child processes with: this program is "
        f"{sys.executable or 'one without a name'}.",
        _hint(),
    )


def environment() -> dict[str, str]:
    """Variables for a child, which then finds packages where this process does.

    Not in the current folder or the main script's, where a stranger's modules may lie.
    """
    variables = dict(os.environ)
    if _is_frozen():  # its packages are inside it
        if hasattr(sys, "_MEIPASS"):  # so are libraries, in a path that PyInstaller set
            variables["LD_LIBRARY_PATH"] = variables.get("LD_LIBRARY_PATH_ORIG", "")
        return variables
    strange = set[str]()
    with suppress(OSError):  # the current folder may be gone
        strange.add(os.getcwd())
    if main := getattr(sys.modules.get("__main__"), "__file__", None):
        strange.add(os.path.dirname(os.path.abspath(main)))
    own = str(CHECKOUT)
    folders = [each for each in sys.path if isinstance(each, str) and os.path.isabs(each)]
    folders = [each for each in [*folders, own] if each == own or each not in strange]
    given = variables.get("PYTHONPATH", "").split(os.pathsep)
    known = dict.fromkeys(each for each in [*given, *folders] if each)
    return variables | {"PYTHONPATH": os.pathsep.join(known)}


def install_command(packages: str) -> str:
    """The command that installs ``packages`` for this Python; uv's environments have no pip."""
    python = shlex.quote(sys.executable or "python3")
    if find_spec("pip") is None:
        return f"uv pip install --python {python} {packages}"
    return f"{python} -m pip install {packages}"


def _is_frozen() -> bool:
    """Whether this program is an app with Python in it (PyInstaller and the like, Nuitka)."""
    return bool(getattr(sys, "frozen", False)) or "__compiled__" in globals()


def _hint() -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"Name a Python {version} in which localspec is installed: {VARIABLE}=/path/to/python"

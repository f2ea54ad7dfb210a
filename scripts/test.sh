#!/usr/bin/env bash
# Sets up .venv and runs everything a change must pass: lint, format, imports, types, tests.
#
#   bash scripts/test.sh                   everything
#   bash scripts/test.sh --fast            the tests without llama.cpp, for everyday work
#   bash scripts/test.sh --thorough        everything, with more random examples, and cases like others
#   bash scripts/test.sh --real FOLDER     the tests of real weights; docs/internals/architecture.md names the files
#   bash scripts/test.sh tests/hub -x      arguments are pytest's
set -euo pipefail
started_in=$PWD
cd "$(dirname "$0")/.."
if [ "${1:-}" = --fast ]; then
  shift
  set -- -m "not llama" "$@"
elif [ "${1:-}" = --real ]; then
  real=$(cd "$started_in" && cd "${2:?must be the folder of the weights}" && pwd)
  shift 2
  set -- -n 0 -m real --real "$real" "$@"  # one process: they are large
fi

installed=.venv/installed
[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
if [ ! "$installed" -nt pyproject.toml ] || [ ! "$installed" -nt constraints.txt ]; then
  SECONDS=0
  pip_install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt)
  if ! .venv/bin/python -m pip show --quiet llama-cpp-python 2>/dev/null; then
    echo "Installing; llama.cpp is compiled first, which takes 1 to 6 minutes once." >&2
    llama_only="-DCMAKE_PROJECT_INCLUDE=\"$PWD/scripts/llama_only.cmake\""
    # pip's cache may hold a build without the row kernels
    CMAKE_ARGS="${CMAKE_ARGS-$llama_only}" "${pip_install[@]}" --no-cache-dir --no-deps llama-cpp-python
  fi
  "${pip_install[@]}" --editable '.[dev]'
  touch "$installed"
  echo "Installed in $SECONDS s." >&2
fi

unset PYTHONDONTWRITEBYTECODE  # each of some thousand processes would compile the package again
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/lint-imports --no-logo
.venv/bin/mypy
.venv/bin/python -m pytest -n auto --dist worksteal "$@"  # neighbours share fixtures

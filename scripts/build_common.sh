# What the build scripts share; they set ROOT, FLAGS, VALUES and ADVICE, and source this.
SELF=${0##*/} SELF=${SELF%.sh} SOURCE=""

fail() { # what is wrong, what to do next
  printf '%s: %s\n%s\n' "$SELF" "$1" "$2" >&2
  exit "${3:-1}"
}

misused() { fail "$1" "See: bash scripts/$SELF.sh --help" 2; }

escaped() { # $1 as one word for a shell, or for the shlex that reads CMAKE_ARGS
  printf '%s' "$1" | sed 's/[][ \\"'\''`$&;()<>|*?!#~]/\\&/g'
}

command_line() { # its words, quoted only where a shell needs it
  local word line=""
  for word in "$@"; do
    case $word in
      *[!A-Za-z0-9_./:=,+-]*) word="'$(printf '%s' "$word" | sed "s/'/'\\\\''/g")'" ;;
    esac
    line="$line $word"
  done
  printf '%s\n' "${line# }"
}

variable() { tr a-z- A-Z_ <<<"${1#--}"; } # the one that holds a flag: WHEEL_DIR for --wheel-dir

read_options() { # FLAGS set their variable to yes, VALUES to the next word, OPERAND is one word
  local flag
  for flag in $FLAGS $VALUES ${OPERAND:-}; do printf -v "$(variable "$flag")" ""; done
  while [ $# -gt 0 ]; do
    case " $FLAGS  |  $VALUES " in
      *" $1 "*" | "*) printf -v "$(variable "$1")" yes ;;
      *" | "*" $1 "*)
        [ -n "${2:-}" ] || misused "$1 needs a value."
        printf -v "$(variable "$1")" %s "$2"
        shift
        ;;
      *)
        [ "${1#-}" = "$1" ] && [ -n "${OPERAND:-}" ] && [ -z "${!OPERAND}" ] ||
          misused "There is no option $1."
        printf -v "$OPERAND" %s "$1"
        ;;
    esac
    shift
    [ -z "$HELP" ] || { usage; exit; }
  done
  case $JOBS in *[!0-9]* | 0*) misused "--jobs takes a number from 1 on, not $JOBS." ;; esac
}

find_compiler() {
  COMPILER=$(type -P "${CXX:-c++}") || fail "No C++ compiler ${CXX:-c++} was found." \
    "Install one (Debian: apt-get install g++), or name it: CXX=g++-12"
}

find_python() {
  [ -n "$PYTHON${VIRTUAL_ENV:-}" ] || fail "No virtual environment is active." \
    "Activate one (. .venv/bin/activate), or name its Python: --python .venv/bin/python"
  PYTHON=${PYTHON:-$VIRTUAL_ENV/bin/python3}
  "$PYTHON" -m pip --version >/dev/null 2>&1 || fail "$PYTHON is not a Python that has pip." \
    "Name another with --python, or give it pip: $(command_line "$PYTHON" -m ensurepip)"
}

read_version() { # pyproject.toml alone says what localspec runs on
  VERSION=$(sed -n 's/.*"llama-cpp-python==\([^"]*\)".*/\1/p' "$ROOT/pyproject.toml")
  [ -n "$VERSION" ] || fail "$ROOT/pyproject.toml pins no llama-cpp-python." \
    'Its dependencies should hold "llama-cpp-python==VERSION".'
}

count_jobs() { # one compiler can take 2 GB
  local memory
  [ -z "$JOBS" ] || return 0
  JOBS=$(nproc)
  memory=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
  [ $((memory / 2097152)) -ge "$JOBS" ] || JOBS=$((memory / 2097152))
  [ "$JOBS" -ge 1 ] || JOBS=1
}

run() { # shows a command, and runs it unless this is a dry run
  printf '\n%s\n' "$(command_line "$@")"
  [ -n "$DRY_RUN" ] || "$@" || fail "That command failed; its own reason is above." "$ADVICE"
}

check_for() { # $1, a library, in a list of files on stdin, whose it is in $2
  grep "$1\\.so" >/dev/null || fail "$2 holds no $1.so, so it has no $3." \
    "See whether your CMAKE_ARGS turn it off, and read pip's output above."
}

fetch_source() { # SOURCE: the sources of the pinned bindings, with llama.cpp in them
  local folder=FOLDER
  if [ -z "$DRY_RUN" ]; then
    folder=$(mktemp -d)
    trap "rm -rf $(escaped "$folder")" EXIT
  fi
  run "$PYTHON" -m pip download --no-deps --no-cache-dir --no-binary llama-cpp-python \
    --dest "$folder" "llama-cpp-python==$VERSION"
  run "$PYTHON" -m tarfile -e "$folder/llama_cpp_python-$VERSION.tar.gz" "$folder"
  SOURCE=$folder/llama_cpp_python-$VERSION
}

build() { # of SOURCE if it is set; neither a cached build nor an installed one may be taken for it
  local library
  library=-DCMAKE_PROJECT_INCLUDE=$(escaped "$ROOT/scripts/llama_only.cmake")
  run env "CMAKE_ARGS=$library $ARGS" "CMAKE_BUILD_PARALLEL_LEVEL=$JOBS" "$PYTHON" -m pip "$@" --no-deps \
    --no-cache-dir --no-binary llama-cpp-python "${SOURCE:-llama-cpp-python==$VERSION}"
}

build_wheel() { # which is to hold the library $1, for what $2 says
  local wheel
  build wheel --wheel-dir "$WHEEL_DIR"
  [ -z "$DRY_RUN" ] || return 0
  wheel=$(find "$WHEEL_DIR" -name "llama_cpp_python-$VERSION-*.whl" | sed 1q)
  "$PYTHON" -m zipfile -l "$wheel" | check_for "$1" "$wheel" "$2"
  echo "Built with $2: $wheel, $(($(wc -c <"$wheel") / 1000000)) MB"
}

build_here() { # the same, installed
  build install --force-reinstall
  run "$PYTHON" -m pip install "llama-cpp-python==$VERSION" # what it depends on and is missing
  [ -n "$DRY_RUN" ] || "$PYTHON" -m pip show --files llama-cpp-python |
    check_for "$1" "What pip installed" "$2"
}

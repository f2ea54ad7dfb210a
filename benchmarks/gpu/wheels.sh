#!/usr/bin/env bash
# Downloads wheels of what localspec serve needs, but for llama.cpp's bindings, which build.sh copies.
#
#   bash benchmarks/gpu/wheels.sh FOLDER PYTHON_VERSION     such as 3.12, that of the other machine
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
mapfile -t needed < <("$python" - "$root/pyproject.toml" <<'EOF'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
needed = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
needed += ["diskcache", "hypothesis", "pytest"]  # of the bindings, and of the tests of devices
print("\n".join(each for each in needed if not each.startswith("llama-cpp-python")))
EOF
)
platforms=()
for minor in 17 24 26 27 28 31 34 35 39; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
"$python" -m pip download -q --only-binary=:all: --dest "$1" --constraint "$root/constraints.txt" \
  --implementation cp --python-version "$2" "${platforms[@]}" --platform manylinux2014_x86_64 "${needed[@]}"
du -sh "$1"

#!/usr/bin/env bash
# Collects what build.sh needs: wheels of what localspec serve needs, but for llama.cpp's bindings,
# and the pinned sdist of these without the folders that no build reads (66 of 77 MB).
#
#   bash benchmarks/gpu/wheels.sh FOLDER PYTHON_VERSION SDIST.tar.gz     such as 3.12, that of the other machine
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
sdist=$(mktemp -d)
trap 'rm -rf "$sdist"' EXIT
tar xzf "$3" -C "$sdist"
unread=(--exclude '.git')
for each in docs models benches tests examples media conversion gguf-py; do
  unread+=(--exclude "*/vendor/llama.cpp/$each")
done
tar czf "$1/$(basename "$3")" "${unread[@]}" -C "$sdist" "$(ls "$sdist")"
du -sh "$1"

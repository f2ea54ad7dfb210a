#!/usr/bin/env bash
# Builds the site from docs/ into a new folder, without a network, and fails on a broken link.
#
#   pip install '.[docs]'
#   bash scripts/build_docs.sh OUT     OUT/index.html opens in a browser as it is
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: bash scripts/build_docs.sh OUT}
[ ! -e "$out" ] || { echo "$out exists. Name a new folder, or remove it: rm -r $out" >&2; exit 2; }
zensical=$(command -v zensical || echo .venv/bin/zensical)
[ -x "$zensical" ] || { echo "Zensical is not installed: pip install '.[docs]'" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r docs "$work/docs"
mv "$work/docs/zensical.toml" "$work"
"$zensical" build --strict --clean --config-file "$work/zensical.toml"
if grep -rlE '<(script|img|iframe)[^>]* src="?https?:|<link[^>]* rel="?stylesheet"?[^>]* href="?https?:' \
  --include=*.html "$work/site"; then
  echo "These pages load something from another host." >&2
  exit 1
fi
mkdir -p "$(dirname "$out")"
mv "$work/site" "$out"
echo "$out/index.html"

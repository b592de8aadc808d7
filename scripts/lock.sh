#!/usr/bin/env bash
# Renews constraints.txt, the lock: resolves pyproject.toml with every extra in a venv of its own and writes down what came out.
#
#   scripts/lock.sh             keep today's versions, pin what pyproject.toml newly asks for, drop what it no longer does
#   scripts/lock.sh --upgrade   take the newest versions that the ranges allow
#
# It does not touch .venv: run `make setup` afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

keep="-c constraints.txt"
[ "${1:-}" != --upgrade ] || keep=""
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${PYTHON:-python3.11}" -m venv "$scratch/venv"
# shellcheck disable=SC2086 # $keep is two words or none
pip() { "$scratch/venv/bin/python" -m pip "$@"; }
pip install -q --upgrade pip
torch=$(sed -n 's/^ *"\(torch[>=][^"]*\)",$/\1/p' pyproject.toml)
pip install -q $keep "$torch"
# hatchling builds this project and setuptools builds dependencies that come as source: they are pinned for the build as well.
pip install -q $keep hatchling setuptools
pip install -q $keep ".[dev,quantised]"
pip check

# torch's local version (+cpu, +cu130) names one machine's build, and its CUDA packages are pinned by its own wheel: neither is ours to lock.
pip freeze --all --exclude flywheel | sed 's/+[A-Za-z0-9.]*$//' | grep -v -i -E '^(nvidia-|triton|cuda-)' | LC_ALL=C sort -f >"$scratch/pins"
if grep -n -v -E '^[A-Za-z0-9_.-]+==[^ ]+$' "$scratch/pins"; then
    echo "lock: the lines above are not plain name==version pins; constraints.txt is left as it was" >&2
    exit 1
fi
{
    cat <<'HEADER'
# The lock: every package of the environment, extras included, at the versions that were resolved and tried together on Linux.
# Written by scripts/lock.sh, read by scripts/setup.sh; edit pyproject.toml, not this file.
#
# torch is pinned without a build suffix: `torch==2.13.0` also accepts 2.13.0+cpu or 2.13.0+cu130, while `torch==2.13.0+cpu` is found
# on no package index but one. It is installed first, by itself, so that the index it comes from can be chosen for it alone
# (FLYWHEEL_TORCH_INDEX) and nothing afterwards replaces the build that was chosen. On macOS its plain wheel is the CPU and Metal build.
#
# A package that only another platform needs (PyObjC for pyautogui on macOS, torch's CUDA libraries) is not listed, hence not held.
HEADER
    cat "$scratch/pins"
} >"$scratch/constraints.txt"
mv "$scratch/constraints.txt" constraints.txt
echo "lock: constraints.txt pins $(wc -l <"$scratch/pins") packages"

#!/usr/bin/env bash
# Makes .venv from the lock and finds or downloads a Chromium. Shared by every target of the Makefile; safe to run again:
# when nothing changed it is done in a fraction of a second, and an installation that was cut off is made again.
#
#   PYTHON                 the Python 3.11 to build .venv with (else python3.11, python3 or python, whichever is one)
#   FLYWHEEL_CHROMIUM      the Chromium or headless shell to use (else the system's, Debian's packages, or Playwright's download)
#   FLYWHEEL_TORCH_INDEX   a package index to take torch alone from, e.g. PyTorch's index of CPU builds, a tenth of the size
#   FLYWHEEL_DESKTOP       light (default): bubblewrap, a display and small programs for terminal and desktop sessions, and what the
#                          recorder and the tests of annotation take, where we are root on Debian; full: LibreOffice and Wine as
#                          well, another gigabyte; none
#   VERBOSE=1              show all that pip and apt-get say
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.flywheel-setup      # what was installed: written last, so it vouches for a whole installation
unfinished=$venv/.flywheel-setup-unfinished
needed_mib=5000
started=$SECONDS

say() { echo "setup: $*"; }
die() {
    echo "setup: $1" >&2
    shift
    for line in "$@"; do echo "       $line" >&2; done
    exit 1
}

quiet=-qq
if [ -n "${VERBOSE:-}" ] || [ -t 1 ]; then quiet=""; fi # a person watches pip's progress bars
pip_install() { # shellcheck disable=SC2086
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input install $quiet -c constraints.txt "$@"
}
is_root_with_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    local out=/dev/null
    [ -z "${VERBOSE:-}" ] || out=/dev/stdout
    { apt-get update && apt-get install -y --no-install-recommends "$@"; } >"$out" 2>&1
}

# --- Python -----------------------------------------------------------------------------------------------------------------------

is_python_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        is_python_311 "$PYTHON" || die "PYTHON is '$PYTHON', which is not a Python 3.11 that runs." "Name one, or unset it to search the PATH."
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3 python; do
        if is_python_311 "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.11 found: tried python3.11, python3 and python on the PATH; the lock is resolved for 3.11 and no other." \
        "Debian 12: apt-get install python3.11-venv. macOS: brew install python@3.11. Anywhere: pyenv install 3.11." \
        "Or name one: make run PYTHON=/path/to/python3.11"
}

make_venv() {
    local python
    python=$(find_python)
    if ! "$python" -c 'import ensurepip' >/dev/null 2>&1; then # Debian keeps it in a package of its own
        is_root_with_apt && apt_install python3.11-venv ||
            die "$python cannot make virtual environments: its ensurepip is missing." "As root: apt-get install python3.11-venv"
    fi
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
}

# --- packages ---------------------------------------------------------------------------------------------------------------------

fingerprint() { # the venv does not survive a move of the checkout: its path is part of it
    cksum constraints.txt pyproject.toml scripts/setup.sh
    pwd -P
}

is_current() {
    [ -f "$stamp" ] && [ ! -e "$unfinished" ] && [ -x "$venv/bin/flywheel" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ] &&
        "$venv/bin/python" -c '' >/dev/null 2>&1
}

torch_build() { # says which build of torch comes, so that nobody on a machine without a GPU takes it for a mistake
    if [ -n "${FLYWHEEL_TORCH_INDEX:-}" ]; then
        echo "the build that FLYWHEEL_TORCH_INDEX names"
    elif [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null; then
        echo "pip's default build. It runs on this CPU; there is nothing to do (a smaller one is an option: docs/environment.md)"
    else
        echo "pip's default build"
    fi
}

install_packages() {
    # A half-written package looks installed to pip: what was cut off is not repaired but made again.
    if [ -e "$unfinished" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then make_venv; fi
    local free_mib
    free_mib=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
    if [ ! -f "$stamp" ] && [ "$free_mib" -lt "$needed_mib" ]; then
        die "$free_mib MiB are free under $PWD; the packages need about $needed_mib MiB." "Free some space, or clone to another disk."
    fi
    : >"$unfinished"
    rm -f "$stamp"

    pip_install --upgrade pip
    say "installing $(grep '^torch==' constraints.txt), the largest package, by itself: $(torch_build)"
    pip_install --no-deps ${FLYWHEEL_TORCH_INDEX:+--index-url "$FLYWHEEL_TORCH_INDEX"} torch
    say "installing the rest of constraints.txt: a few minutes the first time"
    pip_install --build-constraint constraints.txt -e '.[dev]'
    fingerprint >"$stamp"
    rm -f "$unfinished"
    say "packages are in place after $((SECONDS - started)) s"
}

# --- browser ----------------------------------------------------------------------------------------------------------------------

browser() { # prints what was found: "begin-frame PATH", "plain PATH" or "none REASON"
    "$venv/bin/python" - <<'PYTHON'
from sandbox.browser.chromium import find_chromium
from warehouse.core.errors import BrowserMissing

try:
    found = find_chromium()
    print("begin-frame" if found.has_begin_frame_control else "plain", found.path)
except BrowserMissing as error:
    print("none", error)
PYTHON
}

install_browser() {
    if is_root_with_apt; then
        say "installing Debian's chromium-headless-shell"
        if apt_install chromium-headless-shell; then return; fi
        say "no such package here: taking Playwright's download and the libraries it needs"
        "$venv/bin/playwright" install --with-deps chromium-headless-shell
    else
        say "downloading Playwright's headless shell"
        "$venv/bin/playwright" install chromium-headless-shell
    fi
}

wants_better_browser() { # $1: what was found, $2: whether the packages were installed just now
    [ -z "${FLYWHEEL_CHROMIUM:-}" ] || return 1
    case "$1" in
        none*) return 0 ;;
        # A full Chromium serves, but on Linux a headless shell has frames on demand: worth one try, not one a run.
        plain*) [ "$2" = fresh ] && [ "$(uname -s)" = Linux ] ;;
        *) return 1 ;;
    esac
}

find_or_install_browser() { # $1: fresh where the packages were installed just now
    local found
    found=$(browser)
    if wants_better_browser "$found" "$1"; then
        install_browser || say "that did not work"
        found=$(browser)
    fi
    case "$found" in
        none*) die "${found#none }" ;;
        plain*) say "browser: ${found#plain } (no begin-frame control: flywheel doctor says what is lost)" ;;
        *) say "browser: ${found#begin-frame }" ;;
    esac
}

terminal_packages() { # prints the Debian packages that terminal sessions and their tasks lack here
    local pair
    for pair in bwrap:bubblewrap setpriv:util-linux git:git curl:curl pgrep:procps /usr/bin/python3:python3 pdftotext:poppler-utils; do
        command -v "${pair%%:*}" >/dev/null || printf '%s ' "${pair##*:}"
    done
}

desktop_packages() { # $1: light or full; prints those that desktop sessions lack
    "$venv/bin/python" - "$1" <<'PYTHON'
import sys

from sandbox.desktop.apps import APPS, missing_packages

print(*missing_packages(app.name for app in APPS.values() if sys.argv[1] == "full" or not app.is_full))
PYTHON
}

annotation_packages() { # prints the Debian packages that recording lacks here, and those by which the tests of annotation play a person
    local pair
    for pair in xdotool:xdotool espeak-ng:espeak-ng pulseaudio:pulseaudio pactl:pulseaudio-utils tesseract:tesseract-ocr; do
        command -v "${pair%%:*}" >/dev/null || printf '%s ' "${pair##*:}"
    done
    compgen -G '/usr/lib/*/libportaudio.so.2' >/dev/null || printf 'libportaudio2 '
    compgen -G '/usr/lib/*/alsa-lib/libasound_module_pcm_pulse.so' >/dev/null || printf 'libasound2-plugins '
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || printf 'postgresql '
}

test_packages() { # prints those by which the tests cut the power of a disk (benchmarks/power_cut) and play several hosts (benchmarks/common/hosts.py)
    command -v fusermount3 >/dev/null || printf 'fuse3 '
    command -v mkfs.ext4 >/dev/null || printf 'e2fsprogs '
    command -v ip >/dev/null || printf 'iproute2 '
}

find_or_install_sandbox_programs() { # terminal, desktop and annotation sessions need them; browser sessions and the quickstart do not
    local packages which=${FLYWHEEL_DESKTOP:-light}
    if [ "$(uname -s)" != Linux ] || [ "$which" = none ] || ! is_root_with_apt; then return; fi
    packages="$(terminal_packages) $(desktop_packages "$which") $(annotation_packages) $(test_packages)"
    [ -n "${packages// /}" ] || return 0
    say "installing Debian packages for terminals, desktops ($which), annotation and tests: $packages"
    # shellcheck disable=SC2086 # words are packages
    apt_install $packages || say "that did not work: such sessions will be missing (flywheel doctor)"
}

# ----------------------------------------------------------------------------------------------------------------------------------

if is_current; then
    find_or_install_browser current
else
    install_packages
    find_or_install_browser fresh
    find_or_install_sandbox_programs
    say "ready after $((SECONDS - started)) s; $venv/bin/flywheel doctor checks every part"
fi

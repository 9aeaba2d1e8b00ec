#!/bin/sh
# Everything on one Linux machine. Does its own set-up, and is quiet when nothing is to do.
#   bash launch/local.sh demo [math|chess] [flags]   the SearchQA demo, or another; flags passed on to whale_jax.main
#   bash launch/local.sh test [pytest args]          lint, types and the whole test suite
#   bash launch/local.sh python -m …                 anything in the same environment
# Needs Python >= 3.11 (PYTHON names one). Apart from apt (bubblewrap; for tests Chromium), it writes in this checkout and in pip's cache alone.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv="$root/.venv"

fail() {
  echo "local.sh: $*" >&2
  exit 2
}

find_python() {
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    command -v "$candidate"
    return
  done
  fail "needs Python >= 3.11 with venv (on Debian: apt-get install python3-venv); PYTHON=/path/to/python names one"
}

# install NAME WHAT…: pip-installs once per WHAT and content of pyproject.toml, constraints.txt and this file.
install() {
  stamp="$venv/.installed-$1"
  shift
  wanted=$({ cat "$root/pyproject.toml" "$root/constraints.txt" "$root/launch/local.sh" && printf '%s\n' "$*"; } | cksum)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  echo "local.sh: installing into .venv (a few minutes the first time)" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" "$@" >&2
  # JetStream's own requirements bring TensorFlow, which nothing here uses: the package alone, its few real needs are in pyproject.toml.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps google-jetstream==0.2.2 >&2
  printf '%s\n' "$wanted" >"$stamp"
}

# WHALE_EXTRAS=tpu,… adds extras of the package to the environment of a run.
ensure_environment() {
  # pip comes last: an environment whose making was cut short has none, and is made again.
  if [ ! -x "$venv/bin/pip" ]; then
    python=$(find_python) || exit 2
    "$python" -m venv "$venv"
  fi
  install run --editable "$root${WHALE_EXTRAS:+[$WHALE_EXTRAS]}"
  if [ "$1" = test ]; then install test --editable "${root}[dev]"; fi
}

# apt_install PACKAGE WHAT: installs a Debian package where this may be done without asking; else fails.
apt_install() {
  command -v apt-get >/dev/null 2>&1 || return 1
  if [ "$(id -u)" = 0 ]; then sudo=; elif sudo -n true 2>/dev/null; then sudo='sudo -n'; else return 1; fi
  echo "local.sh: installing $1, $2" >&2
  get="env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $1"
  # shellcheck disable=SC2086 # $sudo is empty or two words, $get is a command line
  { $sudo $get || { $sudo apt-get update -qq && $sudo $get; }; } >/dev/null 2>&1
}

ensure_bubblewrap() {
  if command -v bwrap >/dev/null 2>&1 || apt_install bubblewrap "the sandbox of harness code"; then return; fi
  echo "local.sh: bubblewrap is missing (apt-get install bubblewrap); the next sandbox backend is used where the kernel has it" >&2
}

ensure_chromium() {
  if command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1; then return; fi
  if apt_install chromium "the browser in which the report page is tested"; then return; fi
  echo "local.sh: Chromium is missing (apt-get install chromium); the tests of the report page in a browser are skipped" >&2
}

[ $# -gt 0 ] || fail "say demo, test, or python …"
[ "$(uname -s)" = Linux ] || fail "the harness sandbox needs Linux; this is $(uname -s)"
what=$1
shift

# Caches of the tools stay in the environment's folder.
export MPLCONFIGDIR="$venv/cache/matplotlib" HF_HOME="$venv/cache/huggingface" HF_HUB_OFFLINE=1 PYRIGHT_PYTHON_CACHE_DIR="$venv/cache/pyright"
# Compiled programs too: a second run, and a resumed one, start in seconds.
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$venv/cache/jax}"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

has_accelerator() {
  for device in /dev/accel* /dev/vfio/[0-9]* /dev/nvidia[0-9]* /dev/kfd; do
    if [ -e "$device" ]; then return 0; fi
  done
  return 1
}
# The tests are about the CPU. Elsewhere JAX chooses; where there is nothing to choose it is told so, because the TPU compiler
# (for whale_jax.plan), once installed, would otherwise look for a TPU and print at length what it misses.
if [ "$what" = test ] || ! has_accelerator; then export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"; fi

# On a CPU every step of a compiled program takes its memory anew; in huge pages that costs far less (a rollout takes a sixth less time).
# glibc reads this at a process's start alone.
if [ "$what" != test ] && ! has_accelerator; then export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"; fi

case $what in
  demo)
    domain=searchqa
    case ${1:-} in searchqa | math | chess) domain=$1 && shift ;; esac
    ensure_environment run
    if [ "$domain" != searchqa ]; then install "$domain" --editable "${root}[$domain]"; fi
    ensure_bubblewrap
    exec "$venv/bin/python" -m whale_jax.main --flagfile="$root/configs/demo_$domain.flags" "$@"
    ;;
  test)
    ensure_environment test
    ensure_bubblewrap
    ensure_chromium
    cd "$root"
    "$venv/bin/ruff" check --quiet .
    "$venv/bin/ruff" format --check --quiet .
    PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$venv/bin/pyright" --pythonpath "$venv/bin/python"
    exec "$venv/bin/python" -m pytest "$@"
    ;;
  python)
    ensure_environment run
    exec "$venv/bin/python" "$@"
    ;;
  *) fail "unknown command '$what': say demo, test, or python …" ;;
esac

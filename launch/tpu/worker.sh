#!/bin/sh
# What runs on a TPU worker; the other verbs call it over ssh. In ~/whale (WHALE_BASE names another place):
#   code/         the checkout with its environment     data/NAME/   what data.sh brought
#   job/          flags, log, status of the job          run/         the run directory (--run_dir=run)
# worker.sh run is also the supervisor for schedulers that bring their own start and stop (launch/sky).
set -eu

base=${WHALE_BASE:-$HOME/whale}
job=$base/job
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

say() { printf 'worker.sh: %s\n' "$*" >&2; }
fail() {
  status=$1
  shift
  say "$*"
  exit "$status"
}

# The supervisor and the job hold this lock while they live, whatever happens to process ids.
running() { [ -e "$job/lock" ] && ! flock -n "$job/lock" true; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt_install() { # a new machine's own updates hold apt's lock for minutes
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=900 install -y -qq "$@"
}

has_python() { # the same that launch/local.sh looks for
  for candidate in python3.11 python3.12 python3.13 python3; do
    "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
  done
  return 1
}

ensure_python() {
  if has_python; then return; fi
  say "installing Python 3.11 or newer"
  as_root apt-get -o DPkg::Lock::Timeout=900 update -qq
  # Ubuntu 24.04 has 3.12. 22.04 has a release candidate of 3.11 alone, so there it comes from the deadsnakes archive.
  if apt_install python3.12 python3.12-venv 2>/dev/null && has_python; then return; fi
  apt_install software-properties-common
  as_root add-apt-repository -y ppa:deadsnakes/ppa
  as_root apt-get -o DPkg::Lock::Timeout=900 update -qq
  apt_install python3.11 python3.11-venv
  has_python || fail 3 "Python 3.11 was installed and does not work (venv, ensurepip)"
}

ensure_sandbox() {
  if ! command -v bwrap >/dev/null 2>&1; then
    apt_install bubblewrap || { as_root apt-get -o DPkg::Lock::Timeout=900 update -qq && apt_install bubblewrap; }
  fi
  # Ubuntu 23.10 and later take the rights of a new user namespace away from programs without a profile that allows it.
  restricted=${WHALE_USERNS_SYSCTL:-/proc/sys/kernel/apparmor_restrict_unprivileged_userns}
  profiles=${WHALE_APPARMOR_DIR:-/etc/apparmor.d}
  if [ "$(cat "$restricted" 2>/dev/null || echo 0)" != 1 ]; then return; fi
  if grep -Rqs '/usr/bin/bwrap' "$profiles"; then return; fi
  say "installing an AppArmor profile that lets bwrap create user namespaces"
  as_root tee "$profiles/bwrap" >/dev/null <<'PROFILE'
abi <abi/4.0>,
include <tunables/global>

profile bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,

  include if exists <local/bwrap>
}
PROFILE
  as_root apparmor_parser -r "$profiles/bwrap"
}

in_environment() { # in_environment ARGUMENTS…: becomes Python in the environment of launch/local.sh, so call it in ( )
  WHALE_EXTRAS=$(cat "$base/extras")
  export WHALE_EXTRAS
  exec bash "$base/code/launch/local.sh" python "$@"
}

install_code() { # install COMMIT EXTRAS: what lies in incoming/ becomes code/, with the environment that code/ had
  if running; then fail 7 "a job is running: stop it before its code changes"; fi
  ensure_python
  ensure_sandbox
  if [ -d "$base/code/.venv" ]; then mv "$base/code/.venv" "$base/incoming/.venv"; fi
  rm -rf "$base/code"
  mv "$base/incoming" "$base/code"
  ln -sfn code/configs "$base/configs"
  printf '%s\n' "$1" >"$base/commit"
  printf '%s\n' "$2" >"$base/extras"
  (in_environment -c '')
}

check_fitness() { # check_fitness HOSTS
  if running; then fail 7 "a job is running and has the devices: nothing was checked"; fi
  cd "$base"
  rc=0
  row=$(in_environment "$base/code/launch/tpu/check.py" "$1") || rc=$?
  printf 'check: %s\n' "${row:--|-|-|the check itself failed}"
  return "$rc"
}

# Run directory in a bucket. A journal entry may be there only when its evidence is, so the journal is looked at first and
# sent last. Nothing is deleted there.
mirror_run() { # mirror_run URL
  if [ ! -d "$base/run" ]; then return; fi
  rm -rf "$job/journal"
  if [ -d "$base/run/journal" ]; then cp -R "$base/run/journal" "$job/journal"; fi
  gcloud storage rsync --recursive '--exclude=^journal/|^\.lock$' "$base/run" "$1" || return
  if [ -d "$job/journal" ]; then gcloud storage rsync --recursive "$job/journal" "$1/journal" || return; fi
}

restore_run() { # restore_run URL: on a machine without the run
  if [ -d "$base/run" ]; then return; fi
  if ! gcloud storage ls "$1/**" >"$job/mirror.list" 2>"$job/mirror.err"; then
    # Only an empty prefix means a new run: a bucket that cannot be read would start the run over.
    if grep -q 'matched no objects' "$job/mirror.err"; then return; fi
    cat "$job/mirror.err" >&2
    fail 3 "the mirror $1 cannot be read"
  fi
  rm -rf "$base/run.partial"
  mkdir -p "$base/run.partial"
  gcloud storage rsync --recursive "$1" "$base/run.partial" || fail 3 "the mirror $1 could not be copied"
  mv "$base/run.partial" "$base/run"
}

mirror_again() { # mirror_again URL SECONDS: until SIGTERM
  nap=''
  trap '[ -z "$nap" ] || kill "$nap" 2>/dev/null; exit 0' TERM
  while :; do
    sleep "$2" &
    nap=$!
    wait "$nap"
    mirror_run "$1" || say "the copy to $1 failed; it is tried again"
  done
}

# run [URL [SECONDS]]: the job in the foreground, with the lock held on descriptor 9; its exit status is the job's.
run_job() {
  stopping=false child=''
  trap 'stopping=true; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM INT
  mkdir -p "$job"
  cd "$base"
  if [ "${WHALE_LOCKED:-}" != 1 ]; then
    exec 9>"$job/lock"
    flock -n 9 || fail 7 "a job is running already"
  fi
  rm -f "$job/status"
  rc=0
  # What gcloud starts does not hold the lock: a copy that hangs is no job.
  (if [ -n "${1:-}" ]; then restore_run "$1"; fi) 9>&- || rc=$?
  if "$stopping"; then rc=5; fi
  if [ "$rc" = 0 ]; then
    (in_environment -m whale_jax.main "--flagfile=$job/flags") &
    child=$!
    echo "$child" >"$job/pid"
    if "$stopping"; then kill -TERM "$child" 2>/dev/null || true; fi
    copier=''
    if [ -n "${1:-}" ]; then
      mirror_again "$1" "$2" 9>&- &
      copier=$!
    fi
    # A signal ends `wait` before the job has ended; until then the process is there, if only to be waited for.
    while :; do
      rc=0
      wait "$child" || rc=$?
      kill -0 "$child" 2>/dev/null || break
    done
    if [ -n "$copier" ]; then
      kill "$copier" 2>/dev/null || true
      wait "$copier" 2>/dev/null || true
      mirror_run "$1" 9>&- || say "the last copy to $1 failed: the run directory is on this machine alone"
    fi
  fi
  say "the job ended with exit status $rc"
  echo "$rc" >"$job/status.part"
  mv "$job/status.part" "$job/status"
  return "$rc"
}

start_job() { # start_job URL SECONDS: with incoming.flags
  mkdir -p "$job"
  exec 9>"$job/lock"
  flock -w 5 9 || fail 7 "a job is running already"
  mv "$base/incoming.flags" "$job/flags"
  rm -f "$job/status" "$job/stop" "$job/pid"
  # A session of its own, no terminal, none of ssh's descriptors: it outlives the connection. It inherits the lock.
  WHALE_LOCKED=1 setsid nohup sh "$here/worker.sh" run "$1" "$2" >>"$job/log" 2>&1 </dev/null &
  echo $! >"$job/supervisor"
}

commits() { find "$base/run/journal" -name '*.json' 2>/dev/null | wc -l | tr -d ' '; }

show_status() {
  if running; then
    word=running
  elif [ -e "$job/status" ]; then
    word="ended $(cat "$job/status")"
    if [ -e "$job/stop" ]; then word="stopped $(cat "$job/status")"; fi
  elif [ -e "$job/stop" ]; then
    word='stopped lost'
  elif [ -e "$job/supervisor" ]; then
    word=lost
  else
    word=none
  fi
  printf 'job: %s commits=%s code=%s\n' "$word" "$(commits)" "$(cut -c1-12 "$base/commit" 2>/dev/null || echo none)"
}

is_ours() { { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null | grep -Eq 'worker\.sh|whale_jax'; }

# stop_job SECONDS WHO: `user` leaves a mark by which watch.sh knows that the job is not to go on.
stop_job() {
  if [ -d "$job" ] && [ "$2" = user ]; then : >"$job/stop"; fi
  if ! running; then
    say "no job is running"
    return
  fi
  for name in supervisor pid; do
    pid=$(cat "$job/$name" 2>/dev/null || echo)
    if [ -n "$pid" ] && is_ours "$pid"; then
      kill -TERM "$pid"
      break
    fi
  done
  if flock -w "$1" "$job/lock" true; then return; fi
  say "not ended $1 s after SIGTERM: SIGKILL"
  for name in pid supervisor; do
    pid=$(cat "$job/$name" 2>/dev/null || echo)
    if [ -n "$pid" ] && is_ours "$pid"; then kill -KILL "$pid" 2>/dev/null || true; fi
  done
  flock -w 30 "$job/lock" true || fail 3 "the job does not end"
}

show_log() { # log LINES
  [ -r "$job/log" ] || fail 3 "no job was started here"
  if running; then exec tail -n "$1" -F "--pid=$(cat "$job/supervisor")" "$job/log"; fi
  exec tail -n "$1" "$job/log"
}

sizes_there() { # sizes_there URL: size and path of every object under it
  gcloud storage objects list "$1/**" '--format=value(size,name)' | awk -F'\t' -v prefix="${1#gs://*/}/" \
    '{ if (index($2, prefix) == 1) $2 = substr($2, length(prefix) + 1); if ($2 !~ /\/$/ && $2 != "") print $1 "\t" $2 }' | LC_ALL=C sort
}
sizes_here() { (CDPATH='' cd -- "$1" && find . -type f -printf '%s\t%P\n' | LC_ALL=C sort); }

same_sizes() { # same_sizes FOLDER LIST
  [ -d "$1" ] || return 1
  sizes_here "$1" >"$2.here"
  cmp -s "$2" "$2.here" || { diff "$2" "$2.here" | head -n 5 >&2 && return 1; }
  if [ -f "$1/SHA256SUMS" ]; then (CDPATH='' cd -- "$1" && sha256sum --check --quiet --strict SHA256SUMS); fi
}

fetch() { # fetch NAME URL
  list=$base/data/$1.sizes incoming=$base/data/$1.incoming
  mkdir -p "$incoming"
  sizes_there "$2" >"$list"
  [ -s "$list" ] || fail 3 "there is nothing under $2, or it cannot be read"
  if same_sizes "$base/data/$1" "$list" 2>/dev/null && [ "$(cat "$base/data/$1.source" 2>/dev/null)" = "$2" ]; then
    rm -rf "$incoming"
    say "data/$1 is there already"
    return
  fi
  gcloud storage rsync --recursive --delete-unmatched-destination-objects "$2" "$incoming" || fail 3 "$2 could not be copied"
  same_sizes "$incoming" "$list" || fail 3 "data/$1 differs from $2 in the files above"
  take "$1"
  printf '%s\n' "$2" >"$base/data/$1.source"
}

take() {
  rm -rf "$base/data/$1"
  mv "$base/data/$1.incoming" "$base/data/$1"
}

matches() { # matches FOLDER LIST: the same files with the same SHA-256
  [ -d "$1" ] || return 1
  [ "$(find "$1" -type f | wc -l)" -eq "$(wc -l <"$2")" ] || { say "$1 has other files than were sent" && return 1; }
  (CDPATH='' cd -- "$1" && sha256sum --check --quiet --strict "$2")
}

holds() { matches "$base/data/$1" "$base/$1.sha256"; }

accept() {
  matches "$base/data/$1.incoming" "$base/$1.sha256" || fail 3 "data/$1 did not arrive as it was sent"
  take "$1"
  rm -f "$base/data/$1.source"
}

command=${1:?worker.sh install, check, start, run, status, stop, log, fetch, holds or accept}
shift
case $command in
  install) install_code "$@" ;;
  check) check_fitness "$@" ;;
  start) start_job "$@" ;;
  run) run_job "$@" ;;
  status) show_status ;;
  stop) stop_job "$@" ;;
  log) show_log "$@" ;;
  fetch) fetch "$@" ;;
  holds) holds "$@" ;;
  accept) accept "$@" ;;
  *) fail 2 "unknown command '$command'" ;;
esac
exit

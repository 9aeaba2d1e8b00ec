#!/bin/sh
# Keeps a job going until it is done.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=watch.sh
about='watch.sh: keeps a job going until it is done. It creates, sets up, brings data and starts what is not there yet, takes over what is,
and does all of it again when the TPU is preempted or suspended; the job then goes on from its last commit. To that end it deletes
a preempted, suspended or failed queued resource called --name, whoever made it. Takes all that create.sh, setup.sh, data.sh and start.sh take.
A new machine has an empty disk, so a copy of the run must be in a bucket: --mirror=gs://….
With --confirm=NAME the TPU is deleted when the job is done; without, it stays, and costs.
Exit status: 0 done; 2 bad settings of the job or of this; 4 training diverged; 6 the disk is full; 130 interrupted, stopped by stop.sh, or the
TPU was deleted by someone else; 3 --retries failures of infrastructure in a row without a commit between them; any
other is a fault of the job with that exit status.'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
need name zone accelerator_type flagfile
[ -n "$mirror" ] || fail 2 "a machine made anew has an empty disk: --mirror=gs://… is missing"
if [ -n "$confirm" ] && [ "$confirm" != "$name" ]; then fail 2 "--confirm=$confirm is not --name=$name"; fi

failures=0 best=0 had=false missing_is_ours=false

another_failure() { # another_failure TEXT: backs off, or gives up
  failures=$((failures + 1))
  [ "$failures" -le "$retries" ] || fail 3 "$1; gave up after $retries retries without a commit. The TPU, if there is one, stays and costs (delete.sh)"
  delay=$poll_seconds doublings=1
  while [ "$doublings" -lt "$failures" ] && [ "$doublings" -lt 6 ]; do
    delay=$((delay * 2)) doublings=$((doublings + 1))
  done
  say "$1; retry $failures of $retries in $delay s"
  run sleep "$delay"
}

# step VERB ARGUMENTS…: another verb with this one's settings. Bad settings end the watch, a failure counts.
step() {
  step_verb=$1
  shift
  rc=0
  "$here/$step_verb.sh" "$@" || rc=$?
  case $rc in
    0) ;;
    2 | 130 | 143) fail "$rc" "$step_verb.sh ended with exit status $rc: the watch ends" ;;
    *) another_failure "$step_verb.sh failed with exit status $rc" && return 1 ;;
  esac
}

prepare_and_start() {
  step setup "$@" || return 0
  if [ -n "$data" ]; then step data "$@" || return 0; fi
  step start "$@" || return 0
}

remove() { # what is left of a preempted one, so that its name is free again
  say "$1: it is made again"
  if delete_queued; then missing_is_ours=true; else another_failure "the preempted $name could not be deleted"; fi
}

# judge: the job as a whole; the worker in the gravest state speaks for all. Sets $verdict to running, finished, stopped,
# again, prepare, unreachable or the exit status that ends the watch, and $commits.
judge() {
  commits=0 rank=0 verdict=finished running_on='' i=0
  while [ "$i" -lt "$workers" ]; do
    state=$(job_state "$i")
    count=${state##*commits=} && count=${count%% *}
    case $count in '' | *[!0-9]*) count=0 ;; esac
    if [ "$count" -gt "$commits" ]; then commits=$count; fi
    case $state in
      running*) running_on="$running_on $i" grave=0 word=finished ;;
      'ended 0 '* | 'stopped 0 '*) grave=0 word=finished ;;
      'ended 3 '* | 'ended 5 '* | 'ended 8 '* | 'ended 9 '* | 'ended 143 '* | lost*) grave=2 word=again ;;
      none*) grave=3 word=prepare ;;
      'ended 2 '* | 'ended 4 '*) grave=5 word=${state#ended } && word=${word%% *} ;;
      'ended '*) grave=4 word=${state#ended } && word=${word%% *} ;;
      stopped*) grave=6 word=stopped ;;
      *) grave=1 word=unreachable ;;
    esac
    if [ "$grave" -gt "$rank" ]; then rank=$grave verdict=$word speaker=$i spoken=$state; fi
    i=$((i + 1))
  done
  if [ "$rank" = 0 ] && [ -n "$running_on" ]; then verdict=running; fi
}

if "$dry_run"; then
  say "one round of a watch, as if nothing were there yet"
  for part in create setup data start; do
    if [ "$part" != data ] || [ -n "$data" ]; then "$here/$part.sh" "$@"; fi
  done
  "$here/status.sh" "$@"
  exit 0
fi

while :; do
  state=$(queued_state)
  case $state in
    ACTIVE) had=true missing_is_ours=false ;;
    SUSPENDED | FAILED)
      remove "$name is $state"
      continue
      ;;
    SUSPENDING | DELETING)
      missing_is_ours=true
      pause
      continue
      ;;
    UNKNOWN)
      another_failure "the state of $name cannot be had: $(why_unknown)"
      continue
      ;;
    ABSENT)
      if "$had" && ! "$missing_is_ours"; then fail 130 "$name was deleted by someone else: the watch ends, and makes no new one"; fi
      if step create "$@"; then prepare_and_start "$@"; fi
      continue
      ;;
    *) # in the queue: create.sh waits for it
      if step create "$@"; then prepare_and_start "$@"; fi
      continue
      ;;
  esac

  node=$(bounded_cloud compute tpus tpu-vm describe "$name" '--format=value(state)' 2>/dev/null) || node=''
  case $node in
    PREEMPTED | TERMINATED | STOPPED)
      remove "the node of $name is $node"
      continue
      ;;
  esac
  workers=0
  if ! (count_workers); then
    another_failure "the workers of $name cannot be had"
    continue
  fi
  count_workers
  job_states
  judge
  if [ "$commits" -gt "$best" ]; then best=$commits failures=0; fi
  if [ "$rank" -gt 1 ] && [ -n "$running_on" ]; then
    say "worker $speaker: $spoken, while the job runs on$running_on: stopping it there"
    each_worker stop stop_by_verb
    if [ -n "$failed" ]; then show_failed stop; fi
  fi
  case $verdict in
    running) pause ;;
    finished)
      say "the job is done ($commits commits)"
      if [ "$confirm" = "$name" ]; then exec "$here/delete.sh" "$@"; fi
      say "the TPU stays, and costs: $here/delete.sh --name=$name --confirm=$name --zone=$zone"
      exit 0
      ;;
    stopped) fail 130 "the job was stopped (stop.sh): the watch ends; start.sh or watch.sh goes on with it" ;;
    prepare) prepare_and_start "$@" ;;
    unreachable) another_failure "worker $speaker does not answer" ;;
    again)
      another_failure "worker $speaker: $spoken"
      job_states
      judge # meanwhile it may have been stopped, or lost
      if [ "$verdict" = again ]; then step start "$@" || true; fi
      ;;
    2) fail 2 "worker $speaker: the job refuses its settings or input (follow.sh shows why)" ;;
    6) fail 6 "worker $speaker: its disk is full (follow.sh shows where); make room, then watch.sh goes on with the job" ;;
    4) fail 4 "worker $speaker: training diverged (follow.sh); the last checkpoint is intact" ;;
    *) fail "$verdict" "worker $speaker: the job ended with exit status $verdict (follow.sh shows why)" ;;
  esac
done

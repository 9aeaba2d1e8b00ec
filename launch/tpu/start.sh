#!/bin/sh
# Starts the job on all workers.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=start.sh
about='start.sh --flagfile=FILE [-- FLAGS…]: starts whale_jax.main on all workers with one flagfile, made of FILE and FLAGS, in
~/whale, where data.sh put data/NAME; it goes on when the connection ends, and its output is ~/whale/job/log. With a run
directory that holds a run, it goes on with that run.
On several workers the job is one run (--num_processes is added; FLAGS name the mesh), and worker 0 has the run directory.
Needs --name, --zone, --flagfile. Exit status: 0 started on all; 2 settings, or a job runs already; 3 a worker failed to
start it (named; the others are stopped again).'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
shift "$consumed"
need name zone flagfile
build_job_flags "$@"
count_workers
if [ "$workers" != 1 ]; then printf -- '--num_processes=%s\n' "$workers" >>"$job_flags"; fi
job_states
if ! "$dry_run"; then
  i=0
  while [ "$i" -lt "$workers" ]; do
    case $(job_state "$i") in
      running*) fail 2 "a job runs already on worker $i: stop.sh first, or follow.sh" ;;
      unreachable) fail 3 "worker $i does not answer: $(tail -n 2 "$state_dir/status-$i.log")" ;;
      *code=none) fail 2 "worker $i is not set up: setup.sh first" ;;
    esac
    i=$((i + 1))
  done
fi

start_on() {
  # The run directory is worker 0's: it is process 0, on which JAX and the job rest.
  if [ "$1" = 0 ]; then copy_to=$mirror; else copy_to=''; fi
  to_worker "$1" "$job_flags" whale/incoming.flags &&
    on_worker "$1" "sh whale/code/launch/tpu/worker.sh start $(quoted "$copy_to") $mirror_seconds"
}
each_worker start start_on
if [ -n "$failed" ]; then
  not_started=$failed
  show_failed start
  each_worker stop stop_by_verb
  fail 3 "not started: worker $not_started of $workers; the others are stopped"
fi
"$dry_run" || say "started on $workers of $workers workers"

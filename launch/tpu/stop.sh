#!/bin/sh
# Stops the job on all workers.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=stop.sh
about='stop.sh: ends the job on all workers with SIGTERM, so that it saves what it can; SIGKILL after --grace_seconds. The TPU stays,
and costs: delete.sh ends that. start.sh with the same flags goes on. watch.sh takes it as the end.
Needs --name, --zone. Exit status: 0 no job runs; 3 a worker did not answer (named).'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
need name zone
count_workers
each_worker stop stop_by_user
if [ -n "$failed" ]; then
  show_failed stop
  fail 3 "not stopped: worker $failed of $workers"
fi
"$dry_run" || say "no job runs on $workers of $workers workers; the TPU is still there (delete.sh)"

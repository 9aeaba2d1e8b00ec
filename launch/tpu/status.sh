#!/bin/sh
# Says where the TPU and the job stand.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=status.sh
about='status.sh: the state of the queued resource, and one line per worker: running, ended N (the exit status), stopped N, lost (ended
without leaving one) or none, with the commits in the run directory and the commit of the code.
Needs --name, --zone. Exit status: 0 said; 3 gcloud or a worker did not answer.'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
need name zone
state=$(queued_state)
"$dry_run" || printf '%s %s\n' "$name" "$state"
case $state in
  ACTIVE) ;;
  UNKNOWN) "$dry_run" || fail 3 "$(why_unknown)" ;;
  *) exit 0 ;;
esac
count_workers
job_states
if "$dry_run"; then exit 0; fi
i=0
while [ "$i" -lt "$workers" ]; do
  printf 'worker %s: %s\n' "$i" "$(job_state "$i")"
  i=$((i + 1))
done
[ -z "$failed" ] || fail 3 "no answer from worker $failed of $workers"

#!/bin/sh
# Shows the log of the job.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=follow.sh
about='follow.sh: the last --lines of the job log of --worker (default 0), and what comes, until the job ends there or you press Ctrl-C.
Needs --name, --zone. Exit status: 0 the job ended; 3 no log, or the connection broke.'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
need name zone
on_worker "$worker" "sh whale/code/launch/tpu/worker.sh log $lines" || fail 3 "worker $worker: no log, or the connection broke (status.sh)"

#!/bin/sh
# Deletes one TPU by its exact name.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=delete.sh
about='delete.sh: deletes the queued resource and the TPU node called --name, with the disks of its workers, and nothing else.
Without --confirm=NAME, the same name once more, it lists what it would delete and deletes nothing.
Needs --name, --zone. Exit status: 0 deleted, or not there; 2 not confirmed; 3 gcloud failed.'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
need name zone
if [ -n "$confirm" ] && [ "$confirm" != "$name" ]; then fail 2 "--confirm=$confirm is not --name=$name: nothing was deleted"; fi
state=$(queued_state)
if ! "$dry_run"; then
  case $state in
    ABSENT) say "there is no queued resource $name in $zone: nothing to delete" && exit 0 ;;
    UNKNOWN) fail 3 "the state of $name cannot be had, nothing was deleted: $(why_unknown)" ;;
  esac
fi
say "to be deleted, with the disks of all its workers:"
bounded_cloud compute tpus queued-resources describe "$name" '--format=yaml(name,state.state,tpu.nodeSpec[].nodeId,tpu.nodeSpec[].node.acceleratorType)' >&2 ||
  fail 3 "$name cannot be described: nothing was deleted"
if [ -z "$confirm" ] && ! "$dry_run"; then fail 2 "nothing was deleted; repeat with --confirm=$name"; fi
delete_queued || fail 3 "$name was not deleted (gcloud's own words are above): IT MAY STILL COST MONEY"
"$dry_run" || say "$name is deleted"

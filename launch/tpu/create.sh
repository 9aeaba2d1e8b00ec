#!/bin/sh
# Asks for a TPU and waits for it.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=create.sh
about='create.sh: asks for a TPU as a queued resource and waits until it is ACTIVE. One that is there already is left as it is.
Needs --name, --zone, --accelerator_type; --spot or --reserved for other than on-demand capacity.
Exit status: 0 ACTIVE; 2 settings, or a resource of that name in a state that only its owner should end; 3 gcloud failed;
10 the request FAILED; 11 it was SUSPENDED; 12 not ACTIVE within --wait_polls looks. In the last four cases, and when
interrupted, what this call had asked for is deleted again; what was there before is not.'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
need name zone accelerator_type
if "$spot" && "$reserved"; then fail 2 "--spot and --reserved exclude each other"; fi
if [ -z "$runtime_version" ]; then
  case $accelerator_type in
    v5litepod-*) runtime_version=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime_version=v2-alpha-tpuv5 ;;
    v6e-*) runtime_version=v2-alpha-tpuv6e ;;
    v2-* | v3-* | v4-*) runtime_version=tpu-ubuntu2204-base ;;
    *) fail 2 "--runtime_version is missing, and none is known for --accelerator_type=$accelerator_type" ;;
  esac
fi

request="r$(date +%s)-$$" # a label by which a request is known to be this call's
ours=false asked=false

reason() { bounded_cloud compute tpus queued-resources describe "$name" '--format=yaml(state)' || true; }

# A call that was cut off may have asked all the same: the label says whose the resource is.
look_whose() {
  if "$ours" || ! "$asked"; then return; fi
  label=$(bounded_cloud compute tpus queued-resources describe "$name" '--format=value(tpu.nodeSpec[0].node.labels.whale-request)' 2>/dev/null) || label=''
  if [ "$label" = "$request" ]; then ours=true; fi
}

clean_up() {
  if ! "$ours"; then return; fi
  say "deleting the queued resource $name, which this call had created"
  delete_queued >&2 || say "that failed: IT MAY STILL COST MONEY. Delete it: $here/delete.sh --name=$name --confirm=$name --zone=$zone"
  ours=false
}

give_up() { # give_up STATUS TEXT
  say "$2"
  look_whose
  "$ours" || say "$name was not made by this call: what is there stays"
  clean_up
  exit "$1"
}

ask() {
  set -- compute tpus queued-resources create "$name" "--node-id=$name" "--accelerator-type=$accelerator_type" \
    "--runtime-version=$runtime_version" "--labels=whale-request=$request" --async
  if "$spot"; then set -- "$@" --spot; fi
  if "$reserved"; then set -- "$@" --reserved; fi
  if "$internal_ips"; then set -- "$@" --internal-ips; fi
  bounded_cloud "$@" ${network:+"--network=$network"} ${subnetwork:+"--subnetwork=$subnetwork"} \
    ${service_account:+"--service-account=$service_account"}
}

before=$(queued_state)
if "$dry_run"; then before=ABSENT; fi
case $before in
  ACTIVE)
    type=$(bounded_cloud compute tpus tpu-vm describe "$name" '--format=value(acceleratorType.basename())') || fail 3 "$name is ACTIVE, but its node cannot be described"
    [ "$type" = "$accelerator_type" ] || fail 2 "$name is there already, with --accelerator_type=$type, not $accelerator_type: choose another --name"
    say "$name is ACTIVE already"
    exit 0
    ;;
  UNKNOWN) fail 3 "the state of $name cannot be had: $(why_unknown)" ;;
  FAILED | SUSPENDED | SUSPENDING | DELETING)
    fail 2 "$name is there already and $before; it was left alone. To be rid of it: $here/delete.sh --name=$name --confirm=$name --zone=$zone"
    ;;
  ABSENT)
    trap 'give_up 130 "interrupted"' INT
    trap 'give_up 143 "terminated"' TERM
    rc=0 asked=true
    ask || rc=$?
    if [ "$rc" = 0 ]; then
      ours=true
    else
      look_whose
      clean_up
      fail 3 "gcloud could not ask for $name (exit status $rc; its own words are above). Quota: https://cloud.google.com/tpu/docs/quota, and docs/tpu.md"
    fi
    ;;
  *) say "$name is there already and $before: waiting for it" ;;
esac

last='' polls=0
while :; do
  state=$(queued_state)
  if "$dry_run"; then exit 0; fi
  if [ "$state" != "$last" ] || [ $((polls % 15)) = 0 ]; then say "$name: $state (look $((polls + 1)) of $wait_polls)"; fi
  last=$state
  case $state in
    ACTIVE) exit 0 ;;
    FAILED) give_up 10 "the request FAILED: $(reason)" ;;
    SUSPENDED) give_up 11 "the request was SUSPENDED: $(reason)" ;;
  esac
  polls=$((polls + 1))
  [ "$polls" -lt "$wait_polls" ] || give_up 12 "not ACTIVE after $polls looks, every $poll_seconds s; the last state was $state: $(reason)"
  pause
done

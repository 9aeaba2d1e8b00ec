# shellcheck shell=sh
# shellcheck disable=SC2034 # the settings are read by the verbs that source this file
# Settings and helpers of the verbs beside this file, which source it; nothing to run.
# A verb sets $verb and $about before it sources this, then calls `parse "$@"` and `need SETTING…`.
#
# Exit statuses: 0 done; 2 bad settings, or something in a state that the verb will not touch; 3 the cloud, the network
# or a worker failed. create.sh and watch.sh have a few more; their --help lists them.
set -eu
: "${here:?common.sh is sourced by a verb}" "${verb:?}" "${about:?}"

root=$(CDPATH='' cd -- "$here/../.." && pwd)
exec 3>&1 # what --dry_run prints goes here, from inside $(…) too

say() { printf '%s: %s\n' "$verb" "$*" >&2; }

fail() { # fail STATUS TEXT…
  status=$1
  shift
  say "$*"
  exit "$status"
}

usage() {
  printf '%s\n\n' "$about"
  cat <<'HELP'
Settings. They are given as --setting=value, or one a line in a file named by --settings=FILE, where the command line
wins. Every verb takes all of them, so one file serves all, and uses those it needs.
  --name=NAME              of the queued resource and of its TPU node: a-z, 0-9 and -, starting with a letter
  --zone=ZONE              for example us-west4-a
  --project=PROJECT        default: gcloud's own setting
  --accelerator_type=TYPE  for example v5litepod-8, v5litepod-16, v5p-16, v6e-8
  --runtime_version=NAME   default: the one for the accelerator type
  --spot                   spot capacity: cheaper, and may be taken away at any time
  --reserved               capacity of the project's reservation
  --network=NAME --subnetwork=NAME --internal_ips --service_account=EMAIL
  --extras=tpu             extras of the package to install, for example tpu,math
  --allow_uncommitted      setup: send HEAD although the checkout differs from it (the differences are not sent)
  --data=NAME=SOURCE       data: SOURCE (a gs:// prefix or a local folder) becomes data/NAME on every worker; repeatable
  --flagfile=FILE          start, watch: flags of the job; more flags follow after --
  --run_dir=PATH           start, watch: default run, in ~/whale on the worker
  --mirror=gs://…          start, watch: keep a copy of the run directory there, and begin from it on a new machine
  --mirror_seconds=600     between two copies
  --worker=0 --lines=100   follow: whose log, and how much of its past
  --grace_seconds=180      stop: between SIGTERM and SIGKILL
  --retries=5              watch: failures in a row, without a commit between them, before it gives up
  --poll_seconds=20        between two looks at the state
  --wait_polls=1080        create: so many looks before it gives up
  --call_seconds=120       bound of one short call of gcloud (where `timeout` exists)
  --confirm=NAME           delete: the name once more
  --workers=N              how many hosts the slice must have; --dry_run takes it for granted (default there: 1)
  --state_dir=DIR          logs of the verbs; default build/tpu/NAME in the checkout
  --dry_run                print every command as it would be run, and run none
HELP
}

# assign SETTING VALUE WHERE
assign() {
  case $1 in
    name | zone | project | accelerator_type | runtime_version | network | subnetwork | service_account | extras | \
      flagfile | run_dir | mirror | confirm | state_dir)
      [ -n "$2" ] || fail 2 "$3: --$1 needs a value"
      ;;
    spot | reserved | internal_ips | allow_uncommitted | dry_run)
      case $2 in true | false) ;; *) fail 2 "$3: --$1 is true or false, got '$2'" ;; esac
      ;;
    mirror_seconds | lines | worker | grace_seconds | retries | poll_seconds | wait_polls | call_seconds | workers)
      case $2 in '' | *[!0-9]*) fail 2 "$3: --$1 is a whole number, got '$2'" ;; esac
      ;;
    data)
      case ${2%%=*} in '' | "$2" | *[!A-Za-z0-9_-]*) fail 2 "$3: --data is NAME=SOURCE, NAME of letters, digits, _ and -; got '$2'" ;; esac
      [ -n "${2#*=}" ] || fail 2 "$3: --data=$2: SOURCE is empty"
      data="$data$2
"
      return
      ;;
    *) fail 2 "$3: unknown setting --$1 (--help lists them)" ;;
  esac
  eval "$1=\$2" # $1 is one of the names above
}

# parse ARGUMENTS: sets the settings, and $consumed: how many arguments came up to and with --.
parse() {
  name='' zone='' project='' accelerator_type='' runtime_version='' network='' subnetwork='' service_account=''
  extras=tpu flagfile='' run_dir=run mirror='' confirm='' state_dir='' data='' settings=''
  spot=false reserved=false internal_ips=false allow_uncommitted=false dry_run=false
  mirror_seconds=600 lines=100 worker=0 grace_seconds=180 retries=5 poll_seconds=20 wait_polls=1080 call_seconds=120 workers=0
  for argument; do
    case $argument in
      --help | -h) usage && exit 0 ;;
      --settings=*) settings=${argument#*=} ;;
      --) break ;;
    esac
  done
  if [ -n "$settings" ]; then
    [ -r "$settings" ] || fail 2 "--settings=$settings cannot be read"
    row=0
    while IFS= read -r line || [ -n "$line" ]; do
      row=$((row + 1))
      case $line in
        '' | '#'*) ;;
        --*=*) argument=${line#--} && assign "${argument%%=*}" "${argument#*=}" "$settings:$row" ;;
        --*) assign "${line#--}" true "$settings:$row" ;;
        *) fail 2 "$settings:$row: expected --setting=value, got '$line'" ;;
      esac
    done <"$settings"
  fi
  file_data=$data data=''
  consumed=0
  for argument; do
    consumed=$((consumed + 1))
    case $argument in
      --) break ;;
      --settings=*) ;;
      --*=*) argument=${argument#--} && assign "${argument%%=*}" "${argument#*=}" "command line" ;;
      --*) assign "${argument#--}" true "command line" ;;
      *) fail 2 "expected --setting=value, got '$argument'; flags of the job come after --" ;;
    esac
  done
  data=${data:-$file_data}
  case $name in *[!a-z0-9-]* | [!a-z]*) fail 2 "--name=$name: a-z, 0-9 and -, starting with a letter" ;; esac
  state_dir=${state_dir:-$root/build/tpu/$name}
}

need() { # need SETTING…
  for setting; do
    eval "value=\$$setting"
    [ -n "$value" ] || fail 2 "--$setting is missing (--help explains it)"
  done
  command -v gcloud >/dev/null 2>&1 || "$dry_run" || fail 2 "gcloud is not on PATH: https://cloud.google.com/sdk/docs/install"
  mkdir -p "$state_dir"
}

quoted() {
  case $1 in
    '' | *[!A-Za-z0-9_./:=,@%+-]*) printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf '%s' "$1" ;;
  esac
}

run() { # run COMMAND…: what changes or asks anything goes through here
  if ! "$dry_run"; then
    "$@" 3>&-
    return
  fi
  line=''
  for word; do line="$line$(quoted "$word") "; done
  printf '%s\n' "${line% }" >&3
}

pause() { run sleep "$poll_seconds"; }

cloud() { # cloud ARGUMENTS…: gcloud in this zone and project, never asking back
  run gcloud "$@" "--zone=$zone" ${project:+"--project=$project"} --quiet
}

bounded_cloud() { # the same with a bound on its time, where `timeout` exists
  if command -v timeout >/dev/null 2>&1; then
    run timeout "$call_seconds" gcloud "$@" "--zone=$zone" ${project:+"--project=$project"} --quiet
  else
    cloud "$@"
  fi
}

queued_state() { # prints a state of the service, ABSENT, or UNKNOWN (why: $state_dir/describe.err)
  if found=$(bounded_cloud compute tpus queued-resources describe "$name" '--format=value(state.state)' 2>"$state_dir/describe.err"); then
    printf '%s\n' "${found:-UNKNOWN}"
  elif grep -Eqi 'NOT_FOUND|not found' "$state_dir/describe.err"; then
    echo ABSENT
  else
    echo UNKNOWN
  fi
}

why_unknown() {
  if [ -s "$state_dir/describe.err" ]; then cat "$state_dir/describe.err"; else echo "no answer within $call_seconds s (--call_seconds)"; fi
}

delete_queued() { # the queued resource of this name, and its node
  bounded_cloud compute tpus queued-resources delete "$name" --force
}

count_workers() { # sets $workers; fails when --workers said otherwise
  wanted=$workers
  found=$(bounded_cloud compute tpus tpu-vm describe "$name" --flatten=networkEndpoints '--format=value(networkEndpoints.ipAddress)') ||
    fail 3 "the TPU node $name cannot be asked for its workers: is it ACTIVE? (status.sh)"
  if "$dry_run"; then
    [ "$wanted" != 0 ] || wanted=1
    workers=$wanted
    return
  fi
  workers=$(printf '%s\n' "$found" | grep -c .) || fail 3 "the TPU node $name lists no worker"
  [ "$wanted" = 0 ] || [ "$wanted" = "$workers" ] || fail 2 "--workers=$wanted, but $name has $workers"
}

on_worker() { # on_worker I COMMAND [cloud|bounded_cloud]
  if "$internal_ips"; then flag=--internal-ip; else flag=''; fi
  "${3:-cloud}" compute tpus tpu-vm ssh "$name" "--worker=$1" "--command=$2" ${flag:+"$flag"}
}

to_worker() { # to_worker I SOURCE DESTINATION-IN-HOME [--recurse]
  if "$internal_ips"; then flag=--internal-ip; else flag=''; fi
  cloud compute tpus tpu-vm scp "$2" "$name:$3" "--worker=$1" ${4:+"$4"} ${flag:+"$flag"}
}

# each_worker LABEL FUNCTION: FUNCTION I for all workers at once, output in $state_dir/LABEL-I.log, exit status in
# LABEL-I.status; sets $failed to the workers whose status was not 0. One after the other with --dry_run.
each_worker() {
  failed='' i=0
  while [ "$i" -lt "$workers" ]; do
    if "$dry_run"; then
      "$2" "$i"
    else
      {
        rc=0
        "$2" "$i" >"$state_dir/$1-$i.log" 2>&1 || rc=$?
        echo "$rc" >"$state_dir/$1-$i.status"
      } &
    fi
    i=$((i + 1))
  done
  wait
  if "$dry_run"; then return; fi
  i=0
  while [ "$i" -lt "$workers" ]; do
    [ "$(cat "$state_dir/$1-$i.status")" = 0 ] || failed="${failed:+$failed }$i"
    i=$((i + 1))
  done
}

show_failed() { # show_failed LABEL: the last lines of every failed worker's log
  for i in $failed; do
    say "worker $i: exit status $(cat "$state_dir/$1-$i.status"); the end of $state_dir/$1-$i.log:"
    tail -n 5 "$state_dir/$1-$i.log" >&2
  done
}

job_status() { # a machine that nobody set up has no worker.sh to answer with
  # shellcheck disable=SC2016 # $w is the worker's
  on_worker "$1" 'w=whale/code/launch/tpu/worker.sh; if [ -e "$w" ]; then sh "$w" status; else echo "job: none commits=0 code=none"; fi' bounded_cloud
}
stop_by_user() { on_worker "$1" "sh whale/code/launch/tpu/worker.sh stop $grace_seconds user"; }
stop_by_verb() { on_worker "$1" "sh whale/code/launch/tpu/worker.sh stop $grace_seconds verb"; } # watch.sh goes on

# job_states: asks all workers; then `job_state I` prints running, ended N, stopped N, lost, none or unreachable.
job_states() { each_worker status job_status; }
job_state() {
  if [ "$(cat "$state_dir/status-$1.status")" = 0 ]; then sed -n 's/^job: //p' "$state_dir/status-$1.log" | tail -n 1; else echo unreachable; fi
}

# build_job_flags FLAGS…: the one flagfile of the job, from --flagfile and what came after --; sets $job_flags.
build_job_flags() {
  [ -r "$flagfile" ] || fail 2 "--flagfile=$flagfile cannot be read"
  case $mirror in '' | gs://?*) ;; *) fail 2 "--mirror=$mirror: expected gs://bucket/prefix" ;; esac
  if [ -n "$mirror" ] && [ "$run_dir" != run ]; then fail 2 "--mirror is of the run directory on the worker: leave --run_dir out"; fi
  job_flags=$state_dir/job.flags
  for flag; do
    case $flag in
      --run_dir=*) fail 2 "$flag: give --run_dir before --" ;;
      *"
"*) fail 2 "a flag with a line break cannot stand in a flagfile: $flag" ;;
      --*) ;;
      *) fail 2 "expected --flag=value or --flag after --, got '$flag'" ;;
    esac
  done
  {
    cat "$flagfile" && echo
    for flag; do printf '%s\n' "$flag"; done
    printf -- '--run_dir=%s\n' "$run_dir"
  } >"$job_flags"
}

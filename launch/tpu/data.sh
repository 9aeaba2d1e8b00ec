#!/bin/sh
# Puts weights and data on every worker.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=data.sh
about='data.sh: copies every --data=NAME=SOURCE to ~/whale/data/NAME on every worker: SOURCE is a gs:// prefix, which the workers
fetch themselves (every file is compared by name and size, gcloud compares its CRC32C, and SHA256SUMS is checked
where the prefix has one), or a local folder (compared by SHA-256). A folder appears whole, and one that is there and right is not copied again.
Needs --name, --zone, --data; setup.sh comes first. Exit status: 0 all workers have all; 2 settings; 3 a worker has not (named).'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
need name zone data
worker_sh='sh whale/code/launch/tpu/worker.sh'

digest() { if command -v sha256sum >/dev/null 2>&1; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }

list_folder() { # list_folder FOLDER FILE: SHA-256 and path of every file
  : >"$2.part"
  (CDPATH='' cd -- "$1" && find -L . -type f | LC_ALL=C sort | while IFS= read -r file; do digest "$file" || exit 1; done) >"$2.part" &&
    mv "$2.part" "$2"
}

fetch_on() { on_worker "$1" "$worker_sh fetch $item $(quoted "$source")"; }

send_on() {
  to_worker "$1" "$list" "whale/$item.sha256" || return
  held=0
  on_worker "$1" "$worker_sh holds $item" || held=$?
  if [ "$held" = 0 ] && ! "$dry_run"; then return; fi
  on_worker "$1" "rm -rf whale/data/$item.incoming && mkdir -p whale/data" &&
    to_worker "$1" "$source" "whale/data/$item.incoming" --recurse &&
    on_worker "$1" "$worker_sh accept $item"
}

count_workers
printf '%s' "$data" >"$state_dir/data.list"
while IFS= read -r entry <&4; do
  item=${entry%%=*} source=${entry#*=}
  case $source in
    gs://?*)
      source=${source%/}
      each_worker "data-$item" fetch_on
      ;;
    *)
      [ -d "$source" ] || fail 2 "--data=$entry: $source is no folder, and no gs:// prefix"
      list=$state_dir/$item.sha256
      "$dry_run" || list_folder "$source" "$list" || fail 2 "--data=$entry: $source cannot be read"
      "$dry_run" || [ -s "$list" ] || fail 2 "--data=$entry: $source holds no file"
      each_worker "data-$item" send_on
      ;;
  esac
  if [ -n "$failed" ]; then
    show_failed "data-$item"
    fail 3 "data/$item is not in place: worker $failed of $workers"
  fi
  "$dry_run" || say "data/$item is in place on $workers of $workers workers"
done 4<"$state_dir/data.list"

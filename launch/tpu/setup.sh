#!/bin/sh
# Puts the checkout and all that it needs on every worker, and checks it.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
verb=setup.sh
about='setup.sh: sends HEAD of this checkout to every worker, installs what it needs (Python >= 3.11, the package with --extras,
bubblewrap with the AppArmor profile that Ubuntu wants), then checks devices and sandbox; one table line per worker.
Needs --name, --zone. Exit status: 0 all workers are fit; 2 settings, or uncommitted changes; 3 a worker is not (named).'
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"

parse "$@"
need name zone
commit=$(git -C "$root" rev-parse --verify HEAD) || fail 2 "$root is no git checkout with a commit"
if [ -n "$(git -C "$root" status --porcelain)" ] && ! "$allow_uncommitted"; then
  fail 2 "the checkout has uncommitted changes, which would not be sent: commit them, or --allow_uncommitted sends HEAD without them"
fi
count_workers
archive=$state_dir/code.tar.gz
run git -C "$root" archive --format=tar.gz "--output=$archive" "$commit"

install_on() {
  on_worker "$1" 'rm -rf whale/incoming && mkdir -p whale/incoming' &&
    to_worker "$1" "$archive" whale/code.tar.gz &&
    on_worker "$1" "tar -xzf whale/code.tar.gz -C whale/incoming && sh whale/incoming/launch/tpu/worker.sh install $commit $extras"
}
each_worker setup install_on
if [ -n "$failed" ]; then
  show_failed setup
  fail 3 "not set up: worker $failed of $workers"
fi

# Together and not in turn: on several hosts JAX sees its devices only when all of them look.
check_on() { on_worker "$1" "sh whale/code/launch/tpu/worker.sh check $workers"; }
each_worker check check_on
if "$dry_run"; then exit 0; fi
printf '%-7s %-9s %-24s %-34s %s\n' worker python devices sandbox verdict
i=0
while [ "$i" -lt "$workers" ]; do
  row=$(sed -n 's/^check: //p' "$state_dir/check-$i.log" | tail -n 1)
  printf '%s\n' "${row:--|-|-|no answer}" | awk -F'|' -v worker="$i" '{ printf "%-7s %-9s %-24s %-34s %s\n", worker, $1, $2, $3, $4 }'
  i=$((i + 1))
done
if [ -n "$failed" ]; then
  show_failed check
  fail 3 "not fit: worker $failed of $workers"
fi

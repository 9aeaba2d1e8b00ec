#!/bin/sh
# Stands in for launch/local.sh in the checkout that the tests send: records, and plays the check and the job.
set -eu
printf '%s|%s\n' "${WHALE_EXTRAS:-}" "$*" >>"$CLOUD/environment-${WORKER:-0}"
case "$*" in
  *check.py*)
    if [ -e "$CLOUD/unfit-${WORKER:-0}" ]; then cat "$CLOUD/unfit-${WORKER:-0}" && exit 1; fi
    echo '3.11.9|8 tpu of 8|bubblewrap, 21 attempts, none escaped|fit'
    ;;
  *whale_jax.main*) exec "$PYTHON" -IS "$(dirname -- "$0")/job.py" "$@" ;;
esac

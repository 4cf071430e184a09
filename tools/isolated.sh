#!/bin/sh
# isolated.sh COMMAND...: runs a command as root with a network, mounts and processes of its own; all that it started ends
# with it. Two that use the same addresses and ports can run at once. Without root or iproute2 it runs as it is.
[ "$(id -u)" -eq 0 ] && command -v ip >/dev/null || exec "$@"
# the shell stays, as the process that reaps those whose parents were killed
exec unshare --net --mount --pid --fork --kill-child --mount-proc sh -c '
  mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && ip link set lo up || exit
  "$@"
  exit $?' sh "$@"

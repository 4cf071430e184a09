#!/bin/sh
# isolated.sh COMMAND...: runs a command as root with a network, mounts and processes of its own; all that it started ends
# with it. Two that use the same addresses and ports can run at once. Without iproute2, or where namespaces cannot be
# made, it runs as it is.
alone="unshare --net --mount --pid --fork --kill-child --mount-proc"
command -v ip >/dev/null && $alone true 2>/dev/null || exec "$@"
# the shell stays, as the process that reaps those whose parents were killed
exec $alone sh -c '
  mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && ip link set lo up || exit
  "$@"
  exit $?' sh "$@"

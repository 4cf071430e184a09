#!/bin/sh
# Builds a container from dist/, with the first of podman, docker and buildah that is installed.
# FILE, TAG, TOOL and BASE (an image with Python 3.11 or newer and its venv module) can be set; arguments go to the tool.
set -e
FILE=${FILE:-deploy/Containerfile} TAG=${TAG:-tpx}
TOOL=${TOOL:-$(command -v podman || command -v docker || command -v buildah)} ||
  { echo "none of podman, docker and buildah is installed" >&2; exit 1; }
[ -z "$BASE" ] || set -- --build-arg "BASE=$BASE" "$@"
case "$TOOL" in
  *docker) ;;
  *) set -- --format docker --timestamp 0 "$@" ;; # OCI's own format has no HEALTHCHECK; the date of a build is no content
esac
exec "$TOOL" build -f "$FILE" -t "$TAG" "$@" dist

#!/bin/sh
# debian_base.sh NAME: makes an image with Python out of Debian's packages, where no registry of images can be reached.
set -e
folder=.cache/debian-base
if [ ! -x "$folder/usr/bin/python3" ]; then
  rm -rf "$folder" && mkdir -p .cache
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder" >"$folder.log"
  rm -rf "$folder"/var/cache/apt/* "$folder"/var/lib/apt/lists/*
fi
container=$(buildah from scratch)
buildah add -q "$container" "$folder" / >/dev/null
buildah commit -q "$container" "$1" >/dev/null
buildah rm "$container" >/dev/null

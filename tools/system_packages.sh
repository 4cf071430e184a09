#!/bin/sh
# system_packages.sh PACKAGE...: installs what is missing of these Debian packages, where apt is there and may be used.
# Never fails: what needs a missing package says so itself.
missing=""
for package in "$@"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "note: not installed:$missing (no apt here)" >&2
elif [ "$(id -u)" -eq 0 ]; then
  # what is installed for tests must not start serving: packages ask this file before they start a service
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  apt-get install -y -qq $missing >/dev/null 2>&1 ||
    { apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq $missing >/dev/null 2>&1; } ||
    echo "note: could not install:$missing" >&2
else
  echo "note: not installed:$missing (as root: apt-get install$missing)" >&2
fi
exit 0

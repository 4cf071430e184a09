# How the commands of the documentation are run: in an empty folder, in a network namespace of its own, so that default
# ports are free. Measurements are short; a verdict about a busy machine is no fault of the page.
set -e
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
trap 'stop; for each in $beside; do kill $each; done' EXIT

python() { "$PYTHON" "$@"; }
pip() { :; } # what the page installs is installed
tpx() {
  case "$*" in
    "perf compare"*) run "$@" ;;
    perf*--fixed-schedule* | perf*--session-concurrency* | perf*--dry-run*) verdict "$@" ;;
    perf*--ab*) verdict "$@" -p 20 ;;
    perf*--json*) verdict "$@" -p 100 -s 999 -r 3 --max-trials 3 ;; # runs of fewer than ten requests cannot be compared
    perf*) verdict "$@" -p 20 -s 999 -r 3 --max-trials 3 ;;
    "analyze profile"*LLM*) run "$@" --measurement-interval 500 --max-measurements 2 --final-rounds 0 ;;
    "analyze profile"*) run "$@" --measurement-interval 20 --max-measurements 2 --final-rounds 0 ;;
    "analyze rollback"*) run "$@" --yes ;;
    "analyze apply"*) run "$@" --yes 2>apply.log || { cat apply.log >&2; grep -q "run is inconclusive" apply.log; } ;;
    *) run "$@" ;;
  esac
}
run() { timeout 150 "$PYTHON" -IS "$TPX" "$@"; } # in an interpreter that has imported tpx
verdict() { # unstable, nothing in a window, an objective missed, worse: all depend on the machine
  run "$@" || case $? in 2 | 3 | 4 | 5) ;; *) return 1 ;; esac
}
curl() { command curl --fail-with-body "$@"; echo; }
serve() { # in the background, until the page starts another
  stop
  start tpx "$@" --exit-timeout-secs 1
  server=$!
}
also() { # a second server, or another service, beside it
  start "$@"
  beside="$beside $!"
}
start() {
  log=$(mktemp -p .)
  if [ "$1" = tpx ]; then set -- -IS "$TPX" "${@:2}"; else set -- -m "$@"; fi
  "$PYTHON" "$@" >"$log" 2>&1 &
  until grep -q 'is ready' "$log"; do kill -0 $! || { cat "$log"; exit 1; }; sleep 0.05; done
}
stop() { [ -z "$server" ] || { kill $server; wait $server || true; }; server=; }
"$PYTHON" -c '
import fcntl, socket, struct
with socket.socket() as any_socket:  # the loopback interface of a new namespace is down
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
'
models() { ln -s "$MODELS"/* "$(mkdir -p models && cd models && pwd)"; }

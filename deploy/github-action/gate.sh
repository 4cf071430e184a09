#!/bin/sh
# gate.sh: measures MODEL of MODELS and compares it with an earlier version, because two runs of one thing differ, too:
#   with BEFORE, the models of that version: serves both and measures them in turns (perf --ab);
#   with BASELINE, a directory with three or more runs: measures RUNS times, each on a new server, and compares all of them;
#   without either: measures RUNS times; keep the runs as a baseline.
# Ends with 5 if something became worse, with 7 if that is undecided (compare-options --undecided pass: 0), with tpx perf's own
# status if measuring failed or an objective was missed. SERVE_OPTIONS, PERF_OPTIONS and COMPARE_OPTIONS are further words.
set -euf
: "${MODELS:?}" "${MODEL:?}" "${REPORTS:=tpx-reports}" "${BEFORE:=}" "${BASELINE:=}" "${RUNS:=3}"
: "${SERVE_OPTIONS:=}" "${PERF_OPTIONS:=}" "${COMPARE_OPTIONS:=}" "${GITHUB_STEP_SUMMARY:=/dev/null}"
mkdir -p "$REPORTS"
servers=""
trap 'stop' EXIT

stop() {
  for server in $servers; do kill "$server" 2>/dev/null || true; done
  for server in $servers; do wait "$server" || true; done
  servers=""
}

serve() { # serve REPOSITORY LOG: sets $address
  : >"$2" # a log of the server before says that it is ready, too
  tpx serve --model-repository "$1" --http-port=0 --grpc-port=0 --metrics-port=0 $SERVE_OPTIONS >"$2" 2>&1 &
  started=$!
  servers="$servers $started"
  until grep -q "is ready" "$2"; do
    kill -0 "$started" 2>/dev/null || { cat "$2" >&2; exit 1; }
    sleep 0.2
  done
  address=$(sed -n 's/.*HTTPService at \([^" ]*\).*/\1/p' "$2")
}

show() { [ ! -f "$1" ] || cat "$1" >>"$GITHUB_STEP_SUMMARY"; }

if [ -n "$BEFORE" ]; then
  serve "$BEFORE" "$REPORTS/before.log"
  before=$address
  serve "$MODELS" "$REPORTS/server.log"
  status=0
  tpx perf -m "$MODEL" --ab "$before" "$address" --json "$REPORTS/compare.json" --junit "$REPORTS/compare.xml" \
    --markdown "$REPORTS/compare.md" $PERF_OPTIONS $COMPARE_OPTIONS || status=$?
  show "$REPORTS/compare.md"
  exit "$status"
fi

number=1
while [ "$number" -le "$RUNS" ]; do
  serve "$MODELS" "$REPORTS/server.log"
  status=0
  tpx perf -m "$MODEL" -u "$address" --json "$REPORTS/perf-$number.json" --html "$REPORTS/perf.html" \
    --junit "$REPORTS/perf.xml" --markdown "$REPORTS/perf.md" $PERF_OPTIONS || status=$?
  stop
  case $status in
    0) ;;
    2) echo "::warning::tpx perf: the load did not become stable on this runner" ;;
    *) show "$REPORTS/perf.md"; exit "$status" ;;
  esac
  number=$((number + 1))
done
show "$REPORTS/perf.md"

set +f
set -- "$BASELINE"/*.json
if [ -z "$BASELINE" ] || [ ! -f "$1" ]; then
  echo "::notice::no baseline${BASELINE:+ in $BASELINE}: keep the files $REPORTS/perf-*.json as one"
  exit 0
fi
status=0
tpx perf compare "$REPORTS"/perf-*.json --baseline "$@" --markdown "$REPORTS/compare.md" --junit "$REPORTS/compare.xml" \
  $COMPARE_OPTIONS || status=$?
show "$REPORTS/compare.md"
exit "$status"

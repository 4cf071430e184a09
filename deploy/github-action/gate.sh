#!/bin/sh
# gate.sh: serves MODELS, measures MODEL, compares with the file BASELINE where there is one, and writes REPORTS.
# Ends with 5 if something became worse, with tpx perf's own status if measuring failed or an objective was missed.
# SERVE_OPTIONS, PERF_OPTIONS and COMPARE_OPTIONS are further words for the three commands.
set -euf
: "${MODELS:?}" "${MODEL:?}" "${REPORTS:=tpx-reports}" "${BASELINE:=}"
: "${SERVE_OPTIONS:=}" "${PERF_OPTIONS:=}" "${COMPARE_OPTIONS:=}" "${GITHUB_STEP_SUMMARY:=/dev/null}"
mkdir -p "$REPORTS"

tpx serve --model-repository "$MODELS" --http-port=0 --grpc-port=0 --metrics-port=0 $SERVE_OPTIONS >"$REPORTS/server.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" || true' EXIT
until grep -q "is ready" "$REPORTS/server.log"; do
  kill -0 "$server" 2>/dev/null || { cat "$REPORTS/server.log" >&2; exit 1; }
  sleep 0.2
done
address=$(sed -n 's/.*HTTPService at \([^" ]*\).*/\1/p' "$REPORTS/server.log")

status=0
tpx perf -m "$MODEL" -u "$address" --json "$REPORTS/perf.json" --html "$REPORTS/perf.html" \
  --junit "$REPORTS/perf.xml" --markdown "$REPORTS/perf.md" $PERF_OPTIONS || status=$?
[ ! -f "$REPORTS/perf.md" ] || cat "$REPORTS/perf.md" >>"$GITHUB_STEP_SUMMARY"
case $status in
  0) ;;
  2) echo "::warning::tpx perf: the load did not become stable on this runner; differences that it hides are not found" ;;
  *) exit "$status" ;;
esac

if [ -z "$BASELINE" ] || [ ! -f "$BASELINE" ]; then
  echo "::notice::no baseline${BASELINE:+ at $BASELINE}: keep $REPORTS/perf.json as one"
  exit 0
fi
status=0
tpx perf compare "$BASELINE" "$REPORTS/perf.json" --markdown "$REPORTS/compare.md" --junit "$REPORTS/compare.xml" \
  $COMPARE_OPTIONS || status=$?
[ ! -f "$REPORTS/compare.md" ] || cat "$REPORTS/compare.md" >>"$GITHUB_STEP_SUMMARY"
exit "$status"

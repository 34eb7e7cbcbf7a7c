#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The GPU tests, with few cases, under each tool of compute-sanitizer.
#
#	tests/gpu/sanitize.sh [BUILD]		default: build
#
# CASES (8) are the random cases of each kind, REPLAYS (12) those of the graph,
# TOOLS the tools.  Prints a table; the output of each run is in
# BUILD/sanitize-logs.  Exits 1 when a tool reported something or a test
# failed, 77 when there is no compute-sanitizer or no GPU.
set -u

build=${1:-build}
cuda=${CUDA_HOME:-/usr/local/cuda}
tools=${TOOLS:-memcheck racecheck initcheck synccheck}
logs=$build/sanitize-logs
export ENGRAM_PROPERTY_CASES="${CASES:-8}"
replays=${REPLAYS:-12}
failed=0
ran=0

PATH=$PATH:$cuda/bin:$cuda/compute-sanitizer
if ! command -v compute-sanitizer >/dev/null; then
	echo "skip: no compute-sanitizer in \$PATH or $cuda"
	exit 77
fi
mkdir -p "$logs" || exit 1

# sanitize TOOL PROGRAM [ARGUMENT]: a line of the table
sanitize()
{
	tool=$1
	program=$2
	shift 2
	log=$logs/$tool.$program.log
	options=
	unset ENGRAM_SHIM_NO_POISON
	case $tool in
	# between one array and the next, so that none is taken for another
	memcheck) options='--padding 256' ;;
	# what is not written must not count as written
	initcheck) export ENGRAM_SHIM_NO_POISON=1 ;;
	esac
	# shellcheck disable=SC2086 # several words
	timeout 1800 compute-sanitizer --tool "$tool" $options \
		--error-exitcode 9 "$build/tests/gpu/$program" "$@" \
		>"$log" 2>&1
	rc=$?
	case $rc in
	0) result=ok ;;
	9) result='FAIL: reported errors' ;;
	77)
		tail -n 3 "$log"
		exit 77
		;;
	124) result='FAIL: no end after 1800 s' ;;
	*) result="FAIL: exit $rc" ;;
	esac
	[ "$rc" -eq 0 ] || failed=1
	ran=1
	summary=$(sed -n 's/^=* *\(.*SUMMARY: .*\)/\1/p' "$log" | tail -n 1)
	printf '%-10s  %-18s  %-24s  %s\n' "$tool" "$program" "$result" \
		"$summary"
	[ "$rc" -eq 0 ] || echo "            see $log"
}

printf '%-10s  %-18s  %-24s  %s\n' tool program result summary
for tool in $tools; do
	sanitize "$tool" golden_runner_cuda
	sanitize "$tool" test_random
	sanitize "$tool" test_graph "$replays"
done
[ "$ran" -eq 1 ] && [ "$failed" -eq 0 ]

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All GPU benchmarks in one go: tests/bench/run_all.sh RESULTS_DIR [OPTION...]
# Options go to every benchmark (--quick: a smoke run; --lib, --seed).
#
#   PYTHON         the Python that has torch and Triton   python3
#   GIB            size of the table, whole               60, or 1 with --quick
#   ENGRAM_COMMIT  the commit measured, where there is no git
set -u

if [ $# -lt 1 ] || [ "$1" = --help ] || [ "$1" = -h ]; then
	sed -n '3,9s/^# \{0,1\}//p' "$0"
	exit 2
fi
results=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

gib=60
for option; do
	[ "$option" = --quick ] && gib=1
done
gib=${GIB:-$gib}

mounted=
# shellcheck disable=SC2317 # the trap calls it
cleanup() {
	if [ -n "$mounted" ]; then
		umount "$mounted" || umount -l "$mounted"
		rmdir "$mounted"
	fi
	mounted=
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

directory=/dev/shm
point=$(mktemp -d)
if mount -t tmpfs -o "huge=always,mode=700,size=$((gib + 1))g" \
	engram-bench "$point" 2>"$point.err"; then
	mounted=$point
	directory=$point
else
	echo "run_all.sh: no tmpfs of huge pages ($(cat "$point.err")):" \
		"the table goes to /dev/shm, on small pages" >&2
	rmdir "$point"
fi
rm -f "$point.err"

mkdir -p "$results"
failed=0
# Seconds since the epoch, for a duration that is only shown.
bench() {
	name=$1
	shift
	began=$(date +%s)
	echo "== $name"
	PYTHONDONTWRITEBYTECODE=1 "$python" "$here/bench_$name.py" \
		--out "$results/$name.json" "$@" || {
		echo "run_all.sh: bench_$name.py failed" >&2
		failed=1
	}
	echo "   $(($(date +%s) - began)) s"
}

bench gate "$@"
bench lookup --dir "$directory" --gib "$gib" "$@"
root=$(cd "$here/../.." && pwd)
if [ -x "$root/build/bin/engramd" ] &&
	[ -x "$root/build/tests/attach_probe" ]; then
	bench attach --dir "$directory" --gib $((gib < 16 ? gib : 16)) "$@"
else
	echo "== attach: skipped: build/bin/engramd and" \
		"build/tests/attach_probe are not built (make)"
fi
if [ -x "$root/build/bin/engramd" ]; then
	bench gather --dir "$directory" --gib $((gib < 48 ? gib : 48)) "$@"
	bench processes --gib $((gib < 16 ? gib : 16)) "$@"
	bench python "$@"
else
	echo "== gather, processes, python: skipped: build/bin/engramd is not built (make)"
fi
bench model --dir "$directory" --gib "$gib" "$@"
exit $failed

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Make a virtual environment with the packages of requirements.txt.
#
#	venv.sh PYTHON DIR
#
# DIR/ready is there when that worked, else DIR/why-not has the reason; both
# are a success, since the tests can do without.
set -eu

python=$1 dir=$2
here=$(dirname "$0")

rm -rf "$dir"
mkdir -p "$dir"
if "$python" -m venv "$dir/venv" >"$dir/log" 2>&1 &&
	"$dir/venv/bin/python" -m pip install --quiet --no-deps \
		--disable-pip-version-check --retries 2 --timeout 20 \
		--requirement "$here/requirements.txt" >>"$dir/log" 2>&1; then
	touch "$dir/ready"
else
	tail -n 1 "$dir/log" >"$dir/why-not"
	echo "tests of the token map will be skipped: $(cat "$dir/why-not")" >&2
fi

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Build a wheel of the Python client that holds the libraries it loads.
#
#	make_wheel.sh OUT LIBRARY...
#
# What the libraries need beyond the C library (jansson, xxhash) goes in too,
# with its licence, when the package it is from can be told; else the machine
# that the wheel is installed on must have it.
set -eu

out=$1
shift
here=$(dirname "$0")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

cp -R "$here/engram_client" "$here/pyproject.toml" "$here/setup.py" \
	"$here/README.md" "$stage"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
lib=$stage/engram_client/lib
mkdir -p "$lib/needed" "$lib/licences"
cp "$here/../../LICENSE" "$stage"

# The licence of an installed Debian package that owns a file.
licence() {
	owner=$(dpkg -S "$(readlink -f "$1")" 2>/dev/null | cut -d: -f1) ||
		return 1
	[ -n "$owner" ] && [ -r "/usr/share/doc/$owner/copyright" ] &&
		echo "/usr/share/doc/$owner/copyright"
}

for library in "$@"; do
	soname=$(objdump -p "$library" | sed -n 's/^ *SONAME *//p')
	cp -L "$library" "$lib/$soname"
	strip --strip-unneeded "$lib/$soname"
	ldd "$library" | while read -r name arrow path _; do
		case $arrow$name in
		'=>libjansson.so.'* | '=>libxxhash.so.'*) ;;
		*) continue ;;
		esac
		if terms=$(licence "$path"); then
			cp -L "$path" "$lib/needed/$name"
			cp "$terms" "$lib/licences/$name"
		else
			echo "make_wheel: $name stays out: its licence is not" \
				"found" >&2
		fi
	done
done

mkdir -p "$out"
rm -f "$out"/engram_client-*.whl
"${PYTHON:-python3}" -m pip --disable-pip-version-check -q wheel --no-deps \
	--no-build-isolation --no-index -w "$out" "$stage"

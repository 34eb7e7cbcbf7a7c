#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Install the packages of config/deps.txt that are missing.
#
#	config/deps.sh [SECTION...]	default: build test
#
# Root and users with passwordless sudo are asked nothing; anybody else gets
# the command to run.  With nothing missing it only asks dpkg's database.
set -eu

list=$(dirname "$0")/deps.txt
[ $# -gt 0 ] || set -- build test

wanted=
for section in "$@"; do
	packages=$(sed -n "/^\[$section\]/,/^\[/p" "$list" | grep -v '^[[#]' ||
		true)
	if [ -z "$packages" ]; then
		echo "deps: no section \"$section\" in $list" >&2
		exit 2
	fi
	wanted="$wanted $packages"
done
# shellcheck disable=SC2086 # a list of words
set -- $wanted

if ! command -v dpkg-query >/dev/null; then
	echo "deps: this is not Debian or Ubuntu; needed are the equivalents" \
		"of: $*" >&2
	if pkg-config --exists liburing jansson libevent libmicrohttpd \
		libxxhash libsystemd libutf8proc cmocka 2>/dev/null; then
		exit 0
	fi
	echo "deps: pkg-config does not find all of liburing jansson" \
		"libevent libmicrohttpd libxxhash libsystemd libutf8proc cmocka" >&2
	exit 1
fi

# "installed NAME" lines; a virtual package counts by what provides it.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' |
	sed -n 's/^installed //p' | tr -s ' ,' '\n')
missing=
for package in "$@"; do
	printf '%s\n' "$installed" | grep -qxF "$package" ||
		missing="$missing $package"
done
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -eq 0 ]; then
	as_root="env"
elif sudo -n true 2>/dev/null; then
	as_root="sudo -n env"
else
	echo "deps: packages are missing, and installing them needs root. Run:" >&2
	echo "    sudo apt-get update && sudo $install" >&2
	exit 1
fi

echo "deps: installing$missing"
apt="$as_root DEBIAN_FRONTEND=noninteractive"
# shellcheck disable=SC2086 # lists of words
{
	$apt apt-get -qq update
	$apt $install -qq >/dev/null
}

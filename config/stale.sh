#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
#	config/stale.sh BUILD
#
# Remove objects, and their lists of dependencies, whose source is gone: when
# a.cu becomes a.c (or moves), a.o of before would still ask for a.cu, and make
# would stop.  (-MP is for headers alone.)
find "$1" -path "$1/obj*" -name '*.d' 2>/dev/null | while IFS= read -r list; do
	# No -r: a line goes on after a backslash.
	# shellcheck disable=SC2162
	read target source rest <"$list" || continue
	# "a.o: a.c ...", or nvcc's "a.o : a.cu ..."
	[ "$source" != : ] || source=${rest%% *}
	[ -z "$target" ] || [ -z "$source" ] || [ -e "$source" ] ||
		rm -f "$list" "${list%.d}.o"
done

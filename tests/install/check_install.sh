#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Install into a scratch directory, build the example against what was
# installed, run the installed programs, uninstall, and look for leftovers.
# `make check-install` runs it from the top of the tree.  HAVE_CUDA is not empty
# when the GPU part is built, CUDA_FLAGS then find CUDA's headers and runtime.
# shellcheck disable=SC2046 # pkg-config prints words
set -eu

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
dest=$scratch/dest
prefix=/opt/engram

fail() {
	echo "check-install: $*" >&2
	exit 1
}

"$MAKE" --no-print-directory install DESTDIR="$dest" PREFIX=$prefix
root=$dest$prefix
for file in sbin/engramd bin/engramctl bin/engram-synth lib/libengram.so.0 \
	lib/libengram.a include/engram/engram.h lib/pkgconfig/engram.pc \
	lib/systemd/system/engramd.service share/man/man8/engramd.8 \
	share/man/man1/engramctl.1 share/man/man5/engramd.json.5 \
	share/man/man3/libengram.3 share/man/man1/engram-synth.1 \
	share/bash-completion/completions/engramctl \
	share/zsh/site-functions/_engramctl; do
	[ -e "$root/$file" ] || fail "$file was not installed"
done
[ -z "$(find "$dest" -name '*@*')" ] || fail "a file name has an @ in it"
if grep -l '@[A-Z]*@' "$root/lib/pkgconfig/engram.pc" \
	"$root/lib/systemd/system/engramd.service"; then
	fail "a placeholder was left in"
fi

# The installed headers and library alone, found through pkg-config.
export PKG_CONFIG_PATH="$root/lib/pkgconfig"
export PKG_CONFIG_SYSROOT_DIR="$dest"
flags=$("$PKG_CONFIG" --cflags --libs engram)
mkdir "$scratch/src"
cp clients/c/example.c "$scratch/src"
# shellcheck disable=SC2086 # a list of flags
(cd "$scratch/src" && $CC -std=c17 -Wall -Wextra -Werror -pedantic example.c \
	$flags -o example)
# shellcheck disable=SC2086
(cd "$scratch/src" && $CC -std=c17 example.c -static-libgcc \
	$("$PKG_CONFIG" --cflags engram) "$root/lib/libengram.a" \
	$("$PKG_CONFIG" --libs jansson libxxhash) -lm -pthread -o example-a)

# With no engramd to talk to they must start, say so, and fail.
export LD_LIBRARY_PATH="$root/lib"
export ENGRAMD_SOCKET="$scratch/none.sock"
for program in example example-a; do
	if "$scratch/src/$program" demo 2>"$scratch/err"; then
		fail "$program succeeded without engramd"
	fi
	grep -q none.sock "$scratch/err" ||
		fail "$program did not name the socket: $(cat "$scratch/err")"
done

# The GPU part, when it is in this build: the example with a CUDA runtime of its
# own, and a program that knows nothing of CUDA's headers.
if [ "$HAVE_CUDA" ]; then
	for file in lib/libengram_cuda.so lib/libengram_cuda.so.0 \
		include/engram/engram_cuda.h include/engram/engram_comm.h \
		include/engram/engram_cuda_layer.h \
		include/engram/engram_cuda_kernels.h \
		share/man/man3/libengram_cuda.3 \
		share/doc/engramd/example_cuda.c; do
		[ -e "$root/$file" ] || fail "$file was not installed"
	done
	flags=$("$PKG_CONFIG" --cflags --libs engram_cuda)
	cp clients/cuda/example.c tests/install/client_cuda.c "$scratch/src"
	# shellcheck disable=SC2086
	(cd "$scratch/src" && $CC -std=c17 -Wall -Wextra -Werror -pedantic \
		client_cuda.c $flags -o client-cuda &&
		$CC -std=c17 -Wall -Wextra -Werror example.c $flags \
			$CUDA_FLAGS -o example-cuda)
	if "$scratch/src/example-cuda" demo 2>"$scratch/err"; then
		fail "example-cuda succeeded without engramd"
	fi
	grep -q none.sock "$scratch/err" ||
		fail "example-cuda did not name the socket: $(cat "$scratch/err")"
	status=0
	said=$("$scratch/src/client-cuda") || status=$?
	case "$status $said" in
	"0 ") ;;
	"77 skip: "*) echo "client-cuda: $said" ;;
	*) fail "client-cuda: exit $status: $said" ;;
	esac
	# libengram.so is found beside libengram_cuda.so, whoever loads that
	env -u LD_LIBRARY_PATH ldd "$root/lib/libengram_cuda.so.0" |
		grep -q "libengram.so.0 => $root/lib/" ||
		fail "libengram_cuda.so does not find libengram.so beside it"
else
	if find "$dest" -name '*cuda*' | grep .; then
		fail "parts of libengram_cuda were installed without CUDA"
	fi
fi

"$root/sbin/engramd" --version | grep -q '^engramd [0-9]' ||
	fail "engramd --version"
"$root/bin/engramctl" --version | grep -q '^engramctl [0-9]' ||
	fail "engramctl --version"
"$root/bin/engram-synth" --help >/dev/null || fail "engram-synth --help"
for example in "$root"/share/doc/engramd/examples/*.json; do
	"$root/sbin/engramd" --check -c "$example" >/dev/null ||
		fail "$example does not pass --check"
done

"$MAKE" --no-print-directory uninstall DESTDIR="$dest" PREFIX=$prefix
left=$(find "$dest" ! -type d)
[ -z "$left" ] || fail "uninstall left $left"
[ ! -e "$root/include/engram" ] || fail "uninstall left include/engram"
echo "check-install: passed"

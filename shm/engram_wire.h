/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bottom of the control channel that both ends share: numbers of the
 * protocol and descriptors over a Unix stream socket.
 */
#ifndef ENGRAM_WIRE_H
#define ENGRAM_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "engram_error.h"

#define ENGRAM_PROTOCOL_MAJOR 1
#define ENGRAM_PROTOCOL_MINOR 0
#define ENGRAM_LINE_MAX	      (1u << 20) /* bytes of one message, "\n" too */
#define ENGRAM_DEPTH_MAX      32	 /* nested arrays and objects */
#define ENGRAM_FDS_MAX	      128	 /* descriptors of one message */

/* JSON-RPC error code of a product error: -32000 - status. */
#define ENGRAM_RPC_CODE(status) (-32000 - (int)(status))

/* Default socket: $ENGRAMD_SOCKET, else /run/engramd/<instance>.sock. */
void engram_wire_default_socket(char out[108], const char *instance);

/*
 * One sendmsg of up to `len` bytes with `nfds` descriptors attached to the
 * first of them; EINTR is retried.  Returns bytes sent or -errno (EAGAIN
 * too).  If it returns > 0, the descriptors have been sent.
 */
ssize_t engram_wire_send(int sock, const void *data, size_t len, const int *fds,
			 size_t nfds);

/*
 * One recvmsg; descriptors that came with it are CLOEXEC and appended to
 * fds[*nfds..max_fds), what does not fit is closed.  Returns bytes, 0 at the
 * end, or -errno; -EMSGSIZE when the kernel dropped descriptors
 * (MSG_CTRUNC: the receiver is at its RLIMIT_NOFILE); the bytes are then
 * lost and everything received is closed.
 */
ssize_t engram_wire_recv(int sock, void *data, size_t len, int *fds,
			 size_t *nfds, size_t max_fds);

/* Nesting of the JSON text, counted outside strings, without parsing it;
 * stops counting past ENGRAM_DEPTH_MAX. */
unsigned int engram_wire_json_depth(const char *text, size_t len);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engram_status.h"

static const struct {
	const char *symbol, *name, *sentence;
} table[ENGRAM_STATUS_COUNT] = {
#define ROW(symbol, name, sentence) [symbol] = {#symbol, name, sentence}
	ROW(ENGRAM_OK, "Ok", "success"),
	ROW(ENGRAM_EINVAL, "InvalidArgument", "an argument is out of range"),
	ROW(ENGRAM_ENOMEM, "OutOfMemory", "memory could not be allocated"),
	ROW(ENGRAM_ESYS, "SystemError", "a system call failed"),
	ROW(ENGRAM_ENOSPACE, "NoSpace",
	    "the memory backing has not enough room"),
	ROW(ENGRAM_EMEMLOCK, "MemlockTooLow",
	    "the limit of locked memory is too low"),
	ROW(ENGRAM_ENOTFOUND, "NotFound", "there is nothing of that name"),
	ROW(ENGRAM_ENOTREADY, "NotReady", "it is not ready yet"),
	ROW(ENGRAM_EGONE, "GenerationGone",
	    "that generation is no longer held"),
	ROW(ENGRAM_EBUSY, "Busy", "something else holds it"),
	ROW(ENGRAM_EDRAINING, "Draining", "it is going away"),
	ROW(ENGRAM_EPERM, "PermissionDenied", "the caller may not do this"),
	ROW(ENGRAM_EEXIST, "AlreadyExists", "the name is taken"),
	ROW(ENGRAM_ETOOSHORT, "TooShort", "it ends before its data does"),
	ROW(ENGRAM_EVERSION, "VersionMismatch",
	    "the two sides speak different versions"),
	ROW(ENGRAM_EDAMAGED, "Damaged", "its header contradicts itself"),
	ROW(ENGRAM_ECHECKSUM, "ChecksumMismatch",
	    "bytes differ from their checksum"),
	ROW(ENGRAM_ECONFIG, "ConfigInvalid", "the configuration is wrong"),
	ROW(ENGRAM_ECHECKPOINT, "CheckpointInvalid",
	    "the checkpoint is incomplete or damaged"),
	ROW(ENGRAM_EGEOMETRY, "GeometryMismatch",
	    "derived and stated geometry differ"),
	ROW(ENGRAM_EIO, "ReadFailed", "a source could not be read"),
	ROW(ENGRAM_ESOURCECHANGED, "SourceChanged",
	    "a source changed while it was read"),
	ROW(ENGRAM_ESHARD, "ShardInvalid",
	    "some rank of that size would have no heads"),
	ROW(ENGRAM_ECANCELED, "Canceled", "the job was cancelled"),
	ROW(ENGRAM_EPROTOCOL, "ProtocolError",
	    "the peer broke the control protocol"),
	ROW(ENGRAM_EDISCONNECTED, "Disconnected", "the sidecar is not there"),
	ROW(ENGRAM_ETIMEDOUT, "TimedOut", "the deadline passed"),
	ROW(ENGRAM_EUNSUPPORTED, "Unsupported",
	    "this build or host can not do it"),
	ROW(ENGRAM_ENOTOKENMAP, "NoTokenMap",
	    "the table was loaded without a token map"),
	ROW(ENGRAM_EINTERNAL, "InternalError",
	    "a fault of engramd itself; please report it"),
	ROW(ENGRAM_ECUDA, "CudaError", "a CUDA call failed"),
	ROW(ENGRAM_ENCCL, "NcclError", "an NCCL call failed"),
#undef ROW
};

static int known(enum engram_status status)
{
	return (unsigned int)status < ENGRAM_STATUS_COUNT;
}

const char *engram_status_name(enum engram_status status)
{
	return known(status) ? table[status].name : "Unknown";
}

const char *engram_status_symbol(enum engram_status status)
{
	return known(status) ? table[status].symbol : "Unknown";
}

const char *engram_status_sentence(enum engram_status status)
{
	return known(status) ? table[status].sentence : "Unknown";
}

enum engram_status engram_status_from_name(const char *name)
{
	unsigned int i;

	for (i = 0; i < ENGRAM_STATUS_COUNT; i++)
		if (!strcmp(name, table[i].name))
			return (enum engram_status)i;
	return ENGRAM_STATUS_COUNT;
}

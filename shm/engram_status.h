/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One enum of status codes for the whole project: what C functions return,
 * what the control protocol carries (error.data.name) and what the exit
 * codes of the tools derive from.  Values are ABI: only append.
 */
#ifndef ENGRAM_STATUS_H
#define ENGRAM_STATUS_H

#pragma GCC visibility push(default) /* libengram exports these */
#ifdef __cplusplus
extern "C" {
#endif

enum engram_status {
	ENGRAM_OK = 0,
	ENGRAM_EINVAL = 1,	 /* an argument is out of its range */
	ENGRAM_ENOMEM = 2,	 /* malloc failed */
	ENGRAM_ESYS = 3,	 /* a system call failed; see the errno */
	ENGRAM_ENOSPACE = 4,	 /* the memory backing cannot hold it */
	ENGRAM_EMEMLOCK = 5,	 /* RLIMIT_MEMLOCK is too low to pin it */
	ENGRAM_ENOTFOUND = 6,	 /* no such table, layer, job, segment, file */
	ENGRAM_ENOTREADY = 7,	 /* it exists but is not whole yet */
	ENGRAM_EGONE = 8,	 /* that generation is no longer held */
	ENGRAM_EBUSY = 9,	 /* another job or instance holds it */
	ENGRAM_EDRAINING = 10,	 /* it is going away; attach no more */
	ENGRAM_EPERM = 11,	 /* the peer may not do this */
	ENGRAM_EEXIST = 12,	 /* the name is taken */
	ENGRAM_ETOOSHORT = 13,	 /* a segment or file ends before its data */
	ENGRAM_EVERSION = 14,	 /* ABI or protocol version differs */
	ENGRAM_EDAMAGED = 15,	 /* a header contradicts itself */
	ENGRAM_ECHECKSUM = 16,	 /* bytes differ from their checksum */
	ENGRAM_ECONFIG = 17,	 /* the configuration is wrong */
	ENGRAM_ECHECKPOINT = 18, /* the checkpoint directory is wrong */
	ENGRAM_EGEOMETRY = 19,	 /* derived and stated geometry differ */
	ENGRAM_EIO = 20,	 /* a source could not be read */
	ENGRAM_ESOURCECHANGED = 21, /* a source changed while being read */
	ENGRAM_ESHARD = 22,	    /* that rank and size leave no heads */
	ENGRAM_ECANCELED = 23,	    /* somebody cancelled the job */
	ENGRAM_EPROTOCOL = 24,	    /* the peer broke the control protocol */
	ENGRAM_EDISCONNECTED = 25,  /* the sidecar is not there any more */
	ENGRAM_ETIMEDOUT = 26,	    /* the deadline passed first */
	ENGRAM_EUNSUPPORTED = 27,   /* not possible with this build or host */
	ENGRAM_ENOTOKENMAP = 28,    /* hashing needs a token map */
	ENGRAM_EINTERNAL = 29,	    /* a fault of this program; report it */
	ENGRAM_ECUDA = 30,	    /* a CUDA call failed */
	ENGRAM_ENCCL = 31,	    /* an NCCL call failed */
	ENGRAM_STATUS_COUNT	    /* keep last */
};

/*
 * The stable wire name ("NoSpace"), the C name ("ENGRAM_ENOSPACE") and one
 * sentence.  Static strings, never NULL; unknown values give "Unknown".
 */
const char *engram_status_name(enum engram_status status);
const char *engram_status_symbol(enum engram_status status);
const char *engram_status_sentence(enum engram_status status);

/* The status whose wire name is `name`, or ENGRAM_STATUS_COUNT. */
enum engram_status engram_status_from_name(const char *name);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
